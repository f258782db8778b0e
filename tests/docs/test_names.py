"""Pages use the names that bide has, and deny none of its features.

`lists.py` reads the names from the code, `names.py` finds them on pages, `denials.py` knows how a
page denies a feature.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import pytest

import bide
import bide.queue
from tests.docs import lists
from tests.docs.denials import ACTIONS, COMMON, FEATURES, denied
from tests.docs.names import Passage, Reader, Unknown, command_lines, passages
from tests.docs.pages import PAGES, ROOT, code_of, steps

JUDGED: Final = [
    page
    for page in [*PAGES, ROOT / "README.zh.md"]
    if page.name not in ("CONTRIBUTING.md", "keys.md", "mutants.md")  # the latter two are made
]

NAMES: Final = [str(page.relative_to(ROOT)) for page in JUDGED]

RECEIVERS: Final[dict[str, tuple[Any, ...]]] = {
    "queue": (bide.Queue, bide.AsyncQueue),
    "mail": (bide.Queue, bide.AsyncQueue),
    "job": (bide.Job, bide.AsyncJob, bide.CurrentJob),
    "after": (bide.Job,),
    "task": (bide.Task,),
    "worker": (bide.Worker,),
    "pile": (bide.DelayQueue, bide.AsyncDelayQueue),
    "item": (bide.Item,),
    "event": (bide.Event,),
    "events": (bide.queue.Events, bide.queue.AsyncEvents),
}
"""What variables hold, on every page."""

OTHERS: Final[dict[str, tuple[str, ...]]] = {
    "docs/cli.md": (
        *("NO_COLOR", "mail=6,low=1", "exc=", "stack=", "ssl_ca_certs", "ssl_certfile"),
        "credentials=MODULE:NAME",
        *("ssl_keyfile", "ssl_cert_reqs", "ssl_check_hostname", "ssl_ciphers"),
        *("delay_key", "django.tasks"),
    ),
    "docs/coming-from/arq.md": (
        *("on_startup", "cron_jobs", "max_tries", "job.abort()", "allow_abort_jobs=True"),
    ),
    "docs/coming-from/bull.md": ("UnrecoverableError",),
    "docs/coming-from/celery.md": (
        *("beat_schedule", "apply_async", "shared_task", "app.task", "send_task", "--statedb"),
        *("acks_late", "task_reject_on_worker_lost", "task_always_eager", "rate_limit"),
        *("retry_backoff", "retry_jitter", "max_retries", "soft_time_limit", "time_limit"),
        "autoretry_for",
    ),
    "docs/coming-from/delay-rq.md": (
        *("at_front", "enqueue_at", "enqueue_in", "Repeat", "enqueued_at"),
        *("CanceledJobRegistry", "DeferredJobRegistry", "delay_gate", "rq.Queue", "redis.Redis"),
        *("delay_key", "ready_to_enqueue"),
        "sentinel.master_for",
    ),
    "docs/coming-from/docket.md": ("Retry(attempts=5)", "Cron", "Perpetual", "docket"),
    "docs/coming-from/dramatiq.md": ("mail.DQ",),
    "docs/coming-from/index.md": ("--with-scheduler",),
    "docs/coming-from/redis-lists.md": ("poll_queue",),
    "docs/coming-from/rq.md": (
        *("at_front", "enqueue_in", "enqueue_at"),
        "RateLimitRegistry(key, connection).get_rate_limited_job_ids()",
    ),
    "docs/comparison.md": ("acks_late",),
    "docs/decisions/0001-key-layout.md": ("used_memory",),
    "docs/decisions/0004-keeping-time.md": ("epoll_wait",),
    "docs/decisions/0009-rolling-deploys.md": ("timout=5",),
    "docs/decisions/0016-watching.md": ("sched_yield",),
    "docs/howto/arguments.md": ("Decimal",),
    "docs/howto/delay.md": ("timezone.utc", "datetime.now"),
    "docs/howto/logging.md": ("logging.config",),
    "docs/howto/docker.md": (".env",),
    "docs/howto/develop.md": ("node_modules", "shop.tasks"),
    "docs/howto/metrics.md": (
        *("bide.lateness", "bide.attempts", "bide.outcome", "bide.tasks.task"),
        *("messaging.process.duration", "messaging.destination.name"),
    ),
    "docs/decisions/0019-outbox.md": ("bide.contrib.outbox", "django.tasks", "transaction.atomic"),
    "docs/howto/outbox.md": (
        *(
            "create_all",
            "schema_translate_map",
            "MetaData",
            "AsyncEngine",
            "AsyncSession",
            "Connection",
            "transaction_mode",
            "INSTALLED_APPS",
        ),
        *("transaction.atomic", "TestCase", "captureOnCommitCallbacks", "sync_to_async"),
        *("django.tasks", "atomic", "DJANGO_ALLOW_ASYNC_UNSAFE"),
    ),
    "docs/howto/page.md": ("Host", "Forwarded", "Via", "Origin", "root_path", "card_number"),
    "docs/howto/long-jobs.md": ("TimeoutStopSec", "stop_grace_period"),
    "docs/howto/production.md": ("bide supervisor orders", "max_connections"),
    "docs/howto/producers.md": ("client.sendCommand", "client.Do", "enqueue.go"),
    "docs/howto/retry.md": ("my_function",),
    "docs/howto/sentry.md": (
        *("ignore_logger", "set_transaction_name", "set_level", "include_local_variables"),
        "sentry_sdk.flush",
    ),
    "docs/howto/servers.md": (
        *("redis.CredentialProvider", "get_credentials", "decode_responses"),
        *("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"),
        *("ssl_cert_reqs", "ssl_check_hostname", "ssl_ciphers"),
    ),
    "docs/howto/systemd.md": (
        *("WatchdogSec", "EnvironmentFile", "TimeoutStopSec"),
        *(".env", "stdout_logfile_maxbytes=0"),
    ),
    "docs/howto/timeouts.md": ("requests.get",),
    "docs/howto/sizing.md": ("used_memory", "vm.overcommit_memory", "jobs_per_s", "cpu_seconds"),
    "docs/howto/tracing.md": (
        *("messaging.system", "messaging.destination.name"),
        *("bide.tasks.task", "bide.attempt", "bide.redelivered", "bide.lateness"),
    ),
    "docs/howto/web.md": (
        *(
            "current_app",
            "TestCase",
            "django.tasks",
            "app.app_context",
            "INSTALLED_APPS",
            "LOGIN_URL",
            "--timeout-graceful-shutdown",
        ),
        *("DJANGO_ALLOW_ASYNC_UNSAFE", "max_connections"),
    ),
    "docs/installation.md": ("django.tasks",),
    "docs/reference/wire.md": ("Decimal",),
    "docs/testing.md": (
        *("django.tasks", "TestCase", "captureOnCommitCallbacks", "monkeypatch.setenv"),
        *("django_capture_on_commit_callbacks", "pytest.mark"),
    ),
    "docs/tests.md": ("delayed_jobs", "cancel_delayed", "delay_gate"),
    "docs/troubleshooting.md": (
        *("CERTIFICATE_VERIFY_FAILED", "CERTIFICATE_REQUIRED", "WRONG_VERSION_NUMBER"),
        *("requests.get", "CancelledError"),
    ),
}
"""Names of other libraries, of servers and systems that a page mentions where it speaks of ours."""

TRUE: Final[dict[str, str]] = {
    "README.md": "cannot record a result",
    "docs/cli.md": "no progress bars",
    "docs/coming-from/bull.md": "no `waiting` event",
    "docs/decisions/0010-signatures.md": "no time and no priority",
    "docs/decisions/0014-dependencies.md": "touches no group",
    "docs/howto/dependencies.md": "and cannot be batched",
    "docs/howto/groups.md": "for a job without a group",
    "docs/howto/ids.md": "by default there are no retries",
    "docs/howto/page.md": "no cron expressions are counted",
    "docs/howto/schedules.md": "and cannot be batched",
    "docs/howto/sync-and-async.md": "A blocking call cannot be cancelled",
    "docs/testing.md": "enqueues itself without end",
    "docs/when-not.md": "An e-mail cannot be cancelled after it was sent",
    "docs/why/cost.md": "keeps no history of a whole workflow",
}
"""What reads like the denial of a feature, and is none."""


def _passages(page: str) -> list[Passage]:
    """The sentences and cells that speak of bide."""
    text = (ROOT / page).read_text("utf-8")
    found = passages(text, compares=page.startswith(("docs/coming-from/", "docs/tests.md")))
    return [passage for passage in found if passage.title != "test"]


@cache
def _reader(page: str) -> Reader:
    if absent := {*lists.MODULES} - lists.modules().keys():
        pytest.skip(f"the names of {absent} are not known: a library of theirs is not installed")
    receivers = dict(RECEIVERS)
    if page.endswith("delay-rq.md"):  # there, queues and jobs are RQ's
        receivers["mail"] = (lists.modules()["bide.contrib.rq"].DelayQueue,)
        receivers["job"] = (importlib.import_module("rq.job").Job,)
    own = {*_defined((ROOT / page).read_text("utf-8"))} - receivers.keys()
    return Reader(receivers, frozenset({*OTHERS.get(page, ()), *own}))


def _defined(text: str) -> Iterator[str]:
    """The functions and classes that the code of a page defines."""
    for step in steps(text):
        for node in ast.walk(ast.parse(code_of(step))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.name


def _unknown(page: str, others: bool = True) -> Iterator[str]:
    """The names on a page that bide does not have, each with its line."""
    reader = _reader(page)
    if not others:
        reader = Reader(reader.receivers, reader.others - {*OTHERS.get(page, ())})
    for passage in _passages(page):
        for span in () if passage.is_theirs else passage.spans:
            if not span.startswith(("tests/", "::")):
                try:
                    reader.check(span, passage.heading)
                except Unknown as unknown:
                    yield f"{page}:{passage.line}: `{span}`: {unknown}"


@pytest.mark.parametrize("page", NAMES)
def test_a_page_uses_names_that_there_are(page: str) -> None:
    assert [*_unknown(page)] == []


@pytest.mark.parametrize("page", NAMES)
def test_a_page_shows_commands_that_there_are(page: str) -> None:
    reader = _reader(page)
    for line in command_lines((ROOT / page).read_text("utf-8")):
        reader.check(line)


@pytest.mark.slow
@pytest.mark.parametrize("page", NAMES)
def test_a_page_denies_nothing_that_there_is(page: str) -> None:
    true = TRUE.get(page, "\0")
    found = [(p.line, d, p.text) for p in _passages(page) for d in denied(p) if true not in p.text]
    assert found == []


@pytest.mark.parametrize("page", NAMES)
def test_the_code_of_a_page_is_closed(page: str) -> None:
    odd = [passage for passage in _passages(page) if passage.text.count("`") % 2]
    assert odd == []


def test_no_exception_is_left_of_what_no_page_says_any_more() -> None:
    for page, names in OTHERS.items():
        unknown = "\n".join(_unknown(page, others=False))
        assert [name for name in names if name.rstrip("=") not in unknown] == [], page
    for page, text in TRUE.items():
        assert any(text in passage.text for passage in _passages(page)), page


def test_each_feature_that_must_not_be_denied_is_there() -> None:
    for ours in (FEATURES | COMMON | ACTIONS).values():
        Reader(RECEIVERS, frozenset()).check(ours)


# -- the readers themselves


@pytest.mark.parametrize(
    "span",
    [
        "queue.reschedule(id, …)",
        "queue.enqueue_at(moment, f)",
        "job.enqueued_at",
        "job.attempts[0].worker_name",
        "queue.counts().stalled",
        "queue.fetch(id).requeue()",
        "queue.jobs(state, limit=10)",
        "task.options(ttl=5).enqueue(…)",
        "queue.configure(limiter=…)",
        "Queue(connection=…)",
        "Worker([queue], burst=True)",
        "@queue.periodic(…)",
        "raise Snooze(until=…)",
        "bide.Job.cancelled_at",
        "bide.Flow",
        "bide.testing.bed()",
        "ttl=",
        'ttl="5m"',
        ".enqueued_at",
        "reschedule_all",
        "NoSuchJobError",
        "fetch_job(id)",
        "bide queues",
        "bide requeue",
        "bide worker --with-scheduler",
        "bide jobs retry --all",
        "--with-scheduler",
        "$BIDE_REDIS_URL",
        "BIDE_REDIS_URL=…",
    ],
)
def test_a_name_that_there_is_not_is_found(span: str) -> None:
    with pytest.raises(Unknown):
        Reader(RECEIVERS, frozenset()).check(span)


@pytest.mark.parametrize(
    "span",
    [
        "queue.fetch(id).reschedule(delay=…)",
        "queue.reschedule_many([id], …)",
        "job.attempts[0].error.traceback",
        "queue.counts().limits.rate",
        "await mail.on(...)",
        "@queue.task(name=…)",
        "task.options(delay=…, expires=…).enqueue(x=1)",
        "queue.enqueue(f, its_own=1)",
        "async with bide.testing.eager():",
        "with item:",
        "raise PauseQueue(…)",
        "Worker([high, low], strategy=…)",
        "on_crash=",
        'expires="5m"',
        "enqueue_many",
        "bide jobs … -",
        "bide -u URL jobs ls",
        "bide dev app.py -- uvicorn web:app --reload",
        "--burst",
        "-x process",
        "$BIDE_URL",
        "time.sleep",
        "UPDATE stock SET n = 1",
        "redis://host:6379/0",
    ],
)
def test_a_name_that_there_is_passes(span: str) -> None:
    Reader(RECEIVERS, frozenset()).check(span)


WORDS: Final = (
    *("workflows", "dependencies", "schedules", "cron", "expiry", "rate limits", "groups"),
    *("priorities", "deduplication", "batching", "progress", "callbacks", "middlewares"),
    *("dashboard", "metrics", "events", "retries", "results", "retention", "pause"),
    *("cancellation", "signing", "durability", "Django", "testing", "command line"),
)
FORMS: Final = (
    "bide has no {}.",
    "bide does not support {}.",
    "bide doesn't offer {} of any kind.",
    "There is no support for {}.",
    "bide knows nothing of {}.",
    "The {} of a queue is not possible.",
    "| Bull | here |\n|---|---|\n| {} | - |",
    "| Bull | here |\n|---|---|\n| {} | |",
    "| Bull | here |\n|---|---|\n| {} | no |",
)


def _first(text: str) -> list[str]:
    """What the last passage of a text on another library denies."""
    *_, last = passages(text, compares=True)
    return [*denied(last)]


@pytest.mark.parametrize(
    "text",
    [
        "- **Flows and repeatable jobs** are not here.",
        "- **No workflows** with branches and joins.",
        "There is no `depends_on`.",
        "There is no method `queue.reschedule_many`.",
        "bide has no `expires=`.",
        "`bide cron ls` does not exist.",
        "`@queue.cron` and `@queue.every` are not supported.",
        "Rate limits are not supported.",
        "bide does not have any dashboard.",
        "*Instead*: enqueue the second step from the first.",
        "| RQ | bide |\n|---|---|\n| `ttl` | –; a job waits until it is run or cancelled |",
        "| RQ | bide |\n|---|---|\n| `depends_on`, `Dependency` | – |",
        "| RQ | bide |\n|---|---|\n| `repeat` | –; the function enqueues itself once more |",
        "| RQ | bide |\n|---|---|\n| `deferred` | – |",
        "| RQ | bide |\n|---|---|\n| `deferred` | no counterpart |",
        "| RQ | bide |\n|---|---|\n| `depends_on` | not supported |",
        "| RQ | bide |\n|---|---|\n| `rq cron` | – |",
        "| Bull | here |\n|---|---|\n| sandboxed processor | – |",
        "| RQ | bide |\n|---|---|\n| `enqueued_at` | `job.due` |",
        "| Bull | here |\n|---|---|\n| `delay`, `timestamp` | `delay=`, `at=` |",
        "bide cannot expire a job.",
        "bide cannot cancel a job that runs.",
        "A queue can't be paused.",
        "Jobs cannot be signed, so whoever reaches the server may add any.",
        "You cannot chain jobs.",
        "bide is unable to retry jobs.",
        "bide does not support workflows.",
        "bide doesn't offer retries.",
        "It does not come with a dashboard.",
        "The library doesn't have any events.",
        "bide does not know `expires=`.",
        "bide never retries a job.",
        "bide won't cancel a job that runs.",
        "To pause a queue is not possible.",
        "Pausing a queue is not possible.",
        "Cancelling a job is impossible.",
        "It is not possible to limit the rate of a queue.",
        "There is no way to cancel a job.",
        "There is no way to run a job of yours on a schedule.",
        "The worker knows nothing of groups.",
        "There is nothing like `bide cron ls`.",
        "bide has no support for Django.",
        "There is no integration with Django.",
        "bide has no command line.",
        "bide lacks testing helpers.",
        "bide provides neither schedules nor workflows.",
        "There is no durability option.",
        "There is no retention.",
        "Results are not kept.",
        "*Instead*: ask the server; there are no events.",
        "| RQ | bide |\n|---|---|\n| `ttl` | - |",
        "| RQ | bide |\n|---|---|\n| `ttl` | — |",
        "| RQ | bide |\n|---|---|\n| `ttl` | |",
        "| RQ | bide |\n|---|---|\n| `ttl` | no |",
        "| RQ | bide |\n|---|---|\n| `ttl` | No; see below |",
        "| RQ | bide |\n|---|---|\n| `ttl` | None |",
        "| RQ | bide |\n|---|---|\n| events | unsupported |",
        "| RQ | bide |\n|---|---|\n| dashboard | n/a |",
    ],
)
def test_a_denial_is_found(text: str) -> None:
    assert _first(text)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("form", FORMS)
def test_a_denial_of_each_feature_is_found(form: str, word: str) -> None:
    assert _first(form.format(word))


@pytest.mark.parametrize(
    "text",
    [
        "There is no scheduler process, and no leader to elect.",
        "Chains and joins of jobs, but no workflow engine.",
        "A job may wait for others: `depends_on=`.",
        "There is no `queue.enqueue_at`.",
        "Without `retry=` the first error is final.",
        "When no retries are left, the job has failed.",
        "It ends when no event has come for that time.",
        "A paused worker does not claim jobs.",
        "No job is lost.",
        "If the server is down, a worker cannot claim jobs.",
        "| RQ | bide |\n|---|---|\n| cancellation | nothing is lost |",
        "| RQ | bide |\n|---|---|\n| `ttl` | -1 means for ever |",
        "| RQ | bide |\n|---|---|\n| `lpop` | –; inner parts |",
        "| RQ | bide |\n|---|---|\n| `ttl` | `expires=` |",
    ],
)
def test_what_denies_no_feature_passes(text: str) -> None:
    assert _first(text) == []


def test_names_of_others_are_told_apart_by_where_they_stand() -> None:
    page = """\
# Coming from there

## What you had

`queue.theirs()`

## Names

| theirs | here | test |
|---|---|---|
| `queue.theirs()` | `queue.ours()` | `tests/x.py` |

`queue.prose()`. And
`queue.wrapped()` \\| on.
"""
    found = [(p.spans, p.is_theirs) for p in passages(page, compares=True) if p.spans]
    assert found == [
        (["queue.theirs()"], True),
        (["queue.theirs()"], True),
        (["queue.ours()"], False),
        (["tests/x.py"], True),
        (["queue.prose()"], False),
        (["queue.wrapped()"], False),
    ]
