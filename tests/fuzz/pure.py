"""Targets that need no server: whatever is stored or said, it is read or refused."""

from __future__ import annotations

import contextlib
import io
import itertools
from collections.abc import Callable
from contextvars import copy_context
from typing import Any

import pytest

from bide.cli import cron as cron_cli
from bide.cli import screen
from bide.cli.options import read_address
from bide.cli.screen import echo_json
from bide.cli.show import _print
from bide.cli.workers import print_workers
from bide.client.execute import ClientState, Send, execute
from bide.client.url import hide_password, resolve_url
from bide.errors import BadSignature, BideError, PayloadError, UsageError
from bide.logs import printable
from bide.model.durations import from_us, to_bytes, to_us
from bide.model.history import read_history
from bide.model.job import Claimed, RunRecord, Snapshot, read_event
from bide.model.limits import Limits, Retention
from bide.model.payload.body import (
    Body,
    decode_body,
    decode_error,
    decode_item,
    decode_result,
    encode_body,
    encode_error,
    encode_item,
    encode_result,
)
from bide.model.payload.serializers import CODECS, calls_in, frame, is_batch
from bide.model.payload.signing import Keyring, Seal, unsigned
from bide.model.retry import Retry
from bide.model.schedule import Cron, zone_of
from bide.protocol.commands import Command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands import schedules as schedule_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Settle
from bide.protocol.keys import keys_of
from bide.queue.items import ItemInfo
from bide.queue.job_view import JobView, Read, explain
from bide.queue.select import FoundJob, read_value
from bide.tasks.task import TaskRegistry
from bide.views import job
from bide.views import schedules as schedule_report
from bide.views.params import read_moment, relative
from bide.views.queues import workers_report
from bide.worker.invoke import prepare, read
from bide.worker.lifespan import Lifespan
from bide.worker.queue_state import QueueState, read_strategy
from bide.worker.running_job import RunningJob
from tests.fuzz import tasks
from tests.fuzz.mutate import Mutator

MAIL = keys_of("mail")
ONE, TWO = f"one:{'1' * 32}", f"two:{'2' * 32}"
SEAL = Seal(Keyring(ONE), MAIL)
NOW = 1_795_214_038_547_684
_COUNTS = job_commands.QueueStats(
    now_us=1_795_000_000_000_000,
    delayed=1,
    waiting=1,
    active=1,
    completed=1,
    failed=1,
    cancelled=1,
    blocked=1,
    next_due_us=0,
    idle_workers=0,
    paused=True,
    totals={},
    gap_us=0,
    retention=Retention(),
    limits=Limits("1/s", 1, 1),
)
_served = TaskRegistry([tasks.__name__])

BODIES = [
    encode_body(body)
    for body in (
        Body("tests.fuzz.tasks:take", [1, "a", [2.5]]),
        Body("tests.fuzz.tasks:take", [], {"what": {"a": None}}),
        Body("tests.fuzz.tasks:typed", ["2030-01-01", {"id": 1, "tags": ["x"]}], {"many": [1]}),
        Body("tests.fuzz.tasks:take", [b"x", 1], codec="msgpack"),
        Body("tests.fuzz.tasks:take", [{1: 2}], codec="pickle"),
        Body("given", [1], timeout=5, retry=Retry(3, on=[ValueError]), keep=1.5, on_crash="fail"),
        Body("tests.fuzz.tasks:take", [1], meta={"a": 1}, description="d", on_success="a:b"),
        Body("os:system", ["true"]),
    )
]
DEDUPLICATED = SEAL.sign("dedup", "", BODIES[0])
SIGNED = [
    *(SEAL.sign("job", "a", body) for body in BODIES),
    b"".join(frame(DEDUPLICATED) for _ in range(2)),
]
BODIES += [
    b"".join(frame(encode_body(Body("a:b", (i,), codec=codec))) for i in range(3))
    for codec in CODECS
]
ITEMS = [encode_item(data) for data in ({"user": 1}, [1, [2.5]], "text", None, 9007199254740993)]
RESULTS = [
    *(encode_result("t", value) for value in ({"a": [1, None]}, "text", 2.5, True)),
    encode_result("t", [b"x", 1], "msgpack"),
    encode_result("t", {1: 2}, "pickle"),
]
RECORDS = [
    b"1795214038547684-1795214030000000R 7 2 1 2 1 1795214038547684 host.42.ab 1795214038000000",
    b"1795214038547684C0000000000000000- 5 1 0 0 0 1795214038547684 w 1795214038000000 17952140380",
    b"0000000000000000-0000000000000000- 0 0 0 0 0 0 - 1795214038000000 cr5zej12er 179521403800e",
    b"1795214038547684S0000000000000000- 5 0 0 0 0 1795214038547684 w 1795214039 1795214038 9m",
]
ERROR = encode_error(ValueError("no such order"))
NOTES = [
    b"E 1 1795214038547684 1795214038547685 host.42 " + ERROR,
    b"C 2 1795214038547684 1795214038547685 host.42\n"
    b'L 1795214038547684 "a line"\nP 1795214038547684 [0.5,"half"]',
    b'L 1795214038547684 "a line"\nL 1795214038547684 "an\\nother"',
]
EVENTS = [
    b"added enqueue 1795214038547684 a - 0 1795214038547684 ",
    b"failed fail 1795214038547684 a host.42 1 0 " + ERROR[:300],
    b'progress note 1795214038547684 a w 1 0 [0.5,"half"]',
    b"purged purge 1795214038547684 - - 0 0 42",
    b"paused pause 1795214038547684 - - 0 0 ",
]
ABOUTS = [
    b'1795214038547684 {"host":"h","pid":1,"queues":["mail"],"executor":"auto","concurrency":4,'
    b'"started_us":1795214038547684,"version":"0","busy":1,"doing":[["mail","a","t:f",1]],"skew":1}',
    b"1795214038547684",
]
SCHEDULES = [
    b"1795214038547684 cron 5 0 60000000 once 0 0 0 3 1795214038547684 0: 1795215600000000 "
    b'1795302000000000\n{"cron":"0 9 * * 1-5","tz":"Europe/Paris"}\nshop:report',
    b"1 every 0 90000000 0 all 10 1795914038547684 1 9 1795214038547684 1795214038547684: "
    b'1795214128547684.\n{"every_us":90000000,"end_us":1795914038547684,"limit":10}\na:b',
    b'1 at 9 0 0 skip 0 0 0 0 5 0: 7 8.\n{"at_us":[7,8]}\na:b',
]
EXPRESSIONS = [
    *("0 9 * * 1-5", "*/5 0-6,22 1,15 JAN-MAR,7 MON#2", "0 0 L * *", "@daily", "15 2 LW * 5L"),
    *("59 23 31 12 7", "*/7 */5 */3 */2 */2", "0 0 29 2 *"),
]
TERMS = [
    *(b"x=+300000000", b"x=@1795214038547684 e=1795214038547684", b"k=a:b f=ur,f"),
    b"x=+5 d=-e w=+30000000 p=9 c={other}a g=b n=2",
]
ITEM = [
    *(b"completed", NOW, 5, BODIES[0], RECORDS[0], RESULTS[0], NOTES[0], None, TERMS[0]),
    *(None, None),
]


# -- what is checked


def refused_or_read(read: Callable[[bytes], object], *allowed: type[Exception]) -> Any:
    """Reading it ends, in a value or an error of the kinds that callers handle."""

    def check(mutator: Mutator, corpus: list[bytes]) -> None:
        with contextlib.suppress(*allowed):
            read(mutator.bytes(corpus))

    return check


def a_body(mutator: Mutator, corpus: list[bytes]) -> None:
    """What a worker does with it, up to the call."""
    body = mutator.bytes(corpus)
    with contextlib.suppress(PayloadError):
        decode_body(body)
    queue_state = QueueState(MAIL, "w", 1_000_000)
    run = RunningJob(queue_state, Claimed("a", body, NOW, 1, 0, NOW, NOW), 0.0, lambda: None)
    with contextlib.suppress(BideError):
        target = copy_context().run(read, run, _served, allow_pickle=True)
        assert target.function.__module__ == tasks.__name__, "nothing else is ever found"
        prepare(run, target, Lifespan())
    assert run.task_name.isprintable()
    assert 0 < run.policy.timeout <= 1e10
    assert not tasks.imported()


def a_signature(mutator: Mutator, corpus: list[bytes]) -> None:
    """Nothing but what was signed passes; of batched calls, each is signed by itself."""
    i = mutator.random.randrange(len(corpus))
    signed = mutator.bytes([corpus[i]])
    if any(signed == one for one in corpus):
        return
    if is_batch(signed):
        with contextlib.suppress(PayloadError):
            if set(calls_in(signed)) == {DEDUPLICATED}:
                return
    with pytest.raises(BadSignature):
        SEAL.check("job", "a", signed)
    unsigned(signed)
    assert SEAL.verdict("job", "a", signed) in ("bad", "none")


def a_job(mutator: Mutator, corpus: list[bytes]) -> None:
    """All that is shown of a job one of whose parts is odd."""
    item: list[Any] = list(ITEM)
    field = mutator.random.choice((3, 3, 4, 5, 6, 6, 8))
    corpora = {3: BODIES + ITEMS, 4: RECORDS, 5: RESULTS, 6: NOTES, 8: TERMS}
    item[field] = mutator.bytes(corpora[field])
    item[0] = mutator.random.choice((b"completed", b"active", b"failed", b"waiting", b"blocked"))
    item[10] = [2, b"b", b"{other}c"] if item[0] == b"blocked" else None
    (snapshot,) = job_commands.fetch(MAIL, ["a"]).parse([b"ok", NOW, item])
    assert snapshot is not None
    look_at(snapshot)


def check_harmless(text: str) -> None:
    """It moves no cursor and turns no text round."""
    odd = [line for line in text.split("\n") if printable(line) != line]
    assert not odd, odd


def look_at(snapshot: Snapshot) -> None:
    view: JobView[Any] = JobView(None, "a", snapshot=snapshot)
    for name in dir(JobView):
        if not name.startswith("_"):
            with contextlib.suppress(BideError):
                getattr(view, name)
    seen = FoundJob("mail", snapshot)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        _print(seen, explain(Read("mail", snapshot, _COUNTS, [])), "", job.mask_secrets)
        echo_json(job.full(seen, job.mask_secrets))
        screen.remark(job.mask_secrets, seen), relative(-seen.ago)
    check_harmless(out.getvalue())
    with contextlib.suppress(BideError):
        ItemInfo.read(snapshot)


def a_worker(mutator: Mutator, corpus: list[bytes]) -> None:
    """One odd registration hides no other."""
    reply = [b"ok", NOW, [b"good", ABOUTS[0], mutator.bytes([b"host.42"]), mutator.bytes(corpus)]]
    seen = queue_commands.workers(keys_of(None)).parse(reply)
    assert "good" in {worker.name for worker in seen}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        workers_report(seen)
        print_workers(seen)
    check_harmless(out.getvalue())


def a_schedule(mutator: Mutator, corpus: list[bytes]) -> None:
    """Whatever a record says, it is shown or left out, and its times are bounded and in order."""
    reply = [b"ok", NOW, b"0", b"good", corpus[0], mutator.bytes([b"odd"]), mutator.bytes(corpus)]
    page = schedule_commands.read_page(MAIL, "0").parse(reply)
    assert "good" in {one.name for one in page.schedules}
    for one in page.schedules:
        for name in dir(one):
            if not name.startswith("_"):
                with contextlib.suppress(UsageError):
                    getattr(one, name)
        with contextlib.suppress(UsageError):
            assert len(one.upcoming(5)) <= 5
        with contextlib.suppress(UsageError):
            times, _ = one.timing.ahead(one.seen_us, NOW, each=one.missed == "all")
            assert not one.cron or times == sorted(set(times))
    with contextlib.redirect_stdout(io.StringIO()) as out:
        for one in page.schedules:
            seen = schedule_report.FoundSchedule("mail", one, from_us(NOW))
            print(*(column.value(seen) for column in cron_cli.COLUMNS))
            echo_json(schedule_report.schedule_report(seen))
    assert out.getvalue()


def an_expression(mutator: Mutator, corpus: list[bytes]) -> None:
    """It is meant, and then it fires in order, or it is refused in a sentence."""
    with contextlib.suppress(UsageError):
        cron = Cron(mutator.text(EXPRESSIONS), mutator.random.choice(("UTC", "Europe/Paris")))
        found = list(itertools.islice(cron.after(NOW), 5))
        assert found == sorted(set(found))
        assert not found or found[0] > NOW


def a_meta(mutator: Mutator, corpus: list[bytes]) -> None:
    """Odd settings of a queue hide none of its counts."""
    meta = [b"completed", b"3", b"retention", b"10000 1 10000 2 10000 3", b"gap_us", b"5"]
    i = mutator.random.randrange(len(meta))
    meta[i] = mutator.bytes([meta[i]])
    found = job_commands.counts(MAIL).parse([b"ok", NOW, 1, 2, 3, 4, 5, 6, 7, NOW, 7, meta, 2, NOW])
    assert (found.delayed, found.cancelled) == (1, 6)


_SAMPLES: list[tuple[Command[Any], Any]] = [
    (enqueue_commands.enqueue(MAIL, [Prepared("a", "+0", 5, b"{}")]), [b"ok", NOW, NOW]),
    (
        worker_commands.claim(MAIL, "w", 1, 1, 1, 0),
        [b"ok", NOW, NOW, 0, 0, 0, 0, b"x y", 0, b"a", b"{}", 7, 1, NOW],
    ),
    (worker_commands.pop(MAIL, "w", 1, 1, 0), [b"ok", NOW, 0, 0, 0, b"a", ITEMS[0]]),
    (
        worker_commands.settle(MAIL, [Settle(id, 7, "complete") for id in "ab"]),
        [b"ok", NOW, b"ok", b"lost"],
    ),
    (job_commands.fetch(MAIL, ["a"]), [b"ok", NOW, ITEM]),
    (
        job_commands.counts(MAIL),
        [b"ok", NOW, 1, 2, 3, 4, 5, 6, 7, NOW, 7, [b"completed", b"3"], 2, NOW],
    ),
    (job_commands.upcoming(MAIL, 0, 5), [b"ok", NOW, b"a", NOW, b"b", NOW]),
    (job_commands.count_due(MAIL, [1, 60]), [b"ok", NOW, 1, 2]),
    (job_commands.timeline(MAIL, 1, 2), [b"ok", NOW, NOW, 0, 0, 1, 2, 3, 4, 5, 6]),
    (job_commands.list_due(MAIL, 1, 2), [b"ok", NOW, 1, b"a", NOW]),
    (job_commands.listing(MAIL, "failed", 0, 5), [b"ok", NOW, b"a", b"b"]),
    (job_commands.retry(MAIL, ["a"], "+0"), [b"ok", NOW, b"ok", NOW]),
    (job_commands.purge(MAIL, "x"), [b"ok", 5, 1]),
    (job_commands.forget(MAIL), [b"holds", b"pending", 2]),
    (job_commands.listen(MAIL, "l", "-"), [b"ok", NOW, b"1-0", 0]),
    (schedule_commands.read_page(MAIL, "0"), [b"ok", NOW, b"0", b"nightly", SCHEDULES[0]]),
    (schedule_commands.pause_schedule(MAIL, "nightly", True), [b"ok", NOW, SCHEDULES[0]]),
    (
        schedule_commands.run_schedule(MAIL, "nightly", "nightly@1"),
        [b"ok", NOW, b"created", NOW, b"x"],
    ),
    (schedule_commands.remove_schedules(MAIL, ["a"]), [b"ok", b"ok"]),
    (queue_commands.workers(keys_of(None)), [b"ok", NOW, [b"w", ABOUTS[0]]]),
    (queue_commands.queues(keys_of(None)), [b"ok", [b"mail", b"low"]]),
    (queue_commands.heartbeat(keys_of(None), "w", None), [b"ok", NOW, 0]),
]


def a_reply(mutator: Mutator, corpus: list[bytes]) -> None:
    """Any reply is a result or an error of ours; and the reply beside it is read."""
    odd, reply = mutator.random.choice(_SAMPLES)
    good, fine = _SAMPLES[3]
    steps = execute([odd, good], ClientState("here", "server", 0, True))
    step = next(steps)
    assert isinstance(step, Send)
    with pytest.raises(StopIteration) as end:
        steps.send([mutator.reply(reply), fine])
    result, beside = end.value.value
    assert beside == ["ok", "lost"]
    if odd.script == "fetch" and not isinstance(result, BideError):
        for snapshot in result:
            if snapshot is not None and isinstance(snapshot.raw_body, bytes):
                with contextlib.suppress(BideError, TypeError, AttributeError):
                    _ = snapshot.task


WORDS = [
    *("redis://me:pass@host:6379/0", "rediss://h/1?ssl_cert_reqs=none", "unix:///tmp/s?db=0"),
    *("1h30m", "250ms", "high=6,low=1", "fair", "127.0.0.1:8080", "[::1]:80", "500MB", '{"a":1}'),
    *("2030-01-31T09:00:00+01:00", f"{ONE},{TWO},unsigned", "mail", "app.tasks:send"),
]
_READERS: list[Callable[[str], object]] = [
    *(resolve_url, hide_password, to_us, read_strategy, read_address, read_value),
    *(
        Cron,
        zone_of,
        Keyring,
        keys_of,
        lambda text: to_bytes(text, "x"),
        lambda text: read_moment(text, "x"),
        lambda text: _served.find(text),
    ),
]


def a_word(mutator: Mutator, corpus: list[bytes]) -> None:
    """What a person types, or sets, is meant or refused in a sentence."""
    text = mutator.text(WORDS)
    for reader in _READERS:
        with contextlib.suppress(BideError):
            reader(text)


TARGETS: dict[str, tuple[float, Callable[[Mutator, list[bytes]], None], list[bytes]]] = {
    "bodies": (0.17, a_body, BODIES),
    "signatures": (0.10, a_signature, SIGNED),
    "items": (0.05, refused_or_read(decode_item, PayloadError), ITEMS),
    "results": (0.06, refused_or_read(decode_result, PayloadError), RESULTS),
    "errors": (0.04, refused_or_read(decode_error), [ERROR]),
    "run records": (0.05, refused_or_read(RunRecord.read), RECORDS),
    "notes": (0.05, refused_or_read(read_history), NOTES),
    "jobs shown": (0.12, a_job, []),
    "workers shown": (0.04, a_worker, ABOUTS),
    "settings shown": (0.03, a_meta, []),
    "schedules shown": (0.04, a_schedule, SCHEDULES),
    "expressions": (0.03, an_expression, []),
    "events": (0.05, refused_or_read(lambda data: read_event("1-1", data), ValueError), EVENTS),
    "replies": (0.07, a_reply, []),
    "words typed": (0.05, a_word, []),
}
"""Name -> its share of all inputs, what is checked, and what is changed."""
