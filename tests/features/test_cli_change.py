"""`bide jobs cancel`, `retry`, `promote`, `reschedule`, `delete`: by id and in bulk."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bide import Queue
from bide.cli import jobs as cli_jobs
from bide.client import blocking
from bide.errors import ServerUnavailable
from bide.protocol.commands.worker import claim
from bide.protocol.keys import keys_of
from bide.queue._sync.scan import changes
from tests.support.console import at_terminal, bide, error_of, said


@pytest.fixture
def mail(one_url: str) -> Iterator[Queue]:
    queue = Queue("mail", url=one_url)
    yield queue
    queue.close()


@pytest.fixture
def other(one_url: str) -> Iterator[Queue]:
    queue = Queue("other", url=one_url)
    yield queue
    queue.close()


def delayed(queue: Queue, count: int) -> list[str]:
    jobs = [queue.prepare("shop:greet", delay="1h") for _ in range(count)]
    return [job.id for job in queue.enqueue_many(jobs)]


def fail(home: Path, queue: Queue, *texts: str) -> list[str]:
    made = [queue.enqueue("shop:boom", text).id for text in texts]
    said(bide(home, "worker", "shop", "-q", queue.name, "--burst", url=queue.url))
    return made


def take(queue: Queue, id: str) -> None:
    """Be a worker that runs the job."""
    queue.fetch(id).promote()
    client = blocking.Client(queue.url)
    client.run(claim(keys_of(queue.name), "w", 1, 1, 60_000_000, 0))
    client.close()
    assert queue.fetch(id).state == "active"


def states(queue: Queue, ids: list[str]) -> list[str]:
    return [str(job.state) if job else "gone" for job in queue.fetch_many(ids)]


# -- by id


def test_each_verb_by_id(home: Path, one_url: str, mail: Queue) -> None:
    a, b, c = delayed(mail, 3)
    assert said(bide(home, "jobs", "cancel", a, b, url=one_url)) == "2 jobs cancelled.\n"
    assert states(mail, [a, b, c]) == ["cancelled", "cancelled", "delayed"]
    assert said(bide(home, "jobs", "promote", c, url=one_url)) == "1 job promoted.\n"
    assert states(mail, [c]) == ["waiting"]
    said(bide(home, "jobs", "reschedule", c, "--in", "2h", url=one_url))
    assert states(mail, [c]) == ["delayed"]
    said(bide(home, "jobs", "reschedule", c, "--at", "2035-01-31T09:00+01:00", url=one_url))
    assert mail.fetch(c).due.isoformat() == "2035-01-31T08:00:00+00:00"
    said(bide(home, "jobs", "retry", a, "--in", "1h", url=one_url))
    assert states(mail, [a, b]) == ["delayed", "cancelled"]
    assert said(bide(home, "jobs", "delete", b, url=one_url)) == "1 job deleted.\n"
    assert states(mail, [b]) == ["gone"]


def test_ids_come_from_standard_input(home: Path, one_url: str, mail: Queue, other: Queue) -> None:
    made = delayed(mail, 3), delayed(other, 2)
    listed = said(bide(home, "jobs", "ls", "--ids", url=one_url))
    assert said(bide(home, "jobs", "cancel", "-", url=one_url, stdin=listed)) == (
        "5 jobs cancelled.\n"
    )
    assert set(states(mail, made[0]) + states(other, made[1])) == {"cancelled"}


def test_nothing_on_standard_input_is_nothing_to_do(home: Path, one_url: str, mail: Queue) -> None:
    delayed(mail, 1)
    done = bide(home, "jobs", "cancel", "-", url=one_url, stdin="\n")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "There is no id on standard input.\n"


def test_what_a_verb_is_not_for_is_left_alone_and_exits_with_1(
    home: Path, one_url: str, mail: Queue
) -> None:
    a, b = delayed(mail, 2)
    take(mail, a)
    done = bide(home, "jobs", "delete", a, b, url=one_url)
    assert said(done, 1) == "1 job deleted; skipped: 1 active.\n"
    assert f"{a} is active; only" in done.stderr
    assert "can be deleted." in done.stderr


def test_one_that_runs_is_asked_to_stop_unless_it_is_to_be_left(
    home: Path, one_url: str, mail: Queue
) -> None:
    (a,) = delayed(mail, 1)
    take(mail, a)
    done = bide(home, "jobs", "cancel", a, "--leave-running", url=one_url)
    assert said(done, 1) == "0 jobs cancelled; skipped: 1 active.\n"
    assert "is active; only" in done.stderr
    assert "only active" not in done.stderr
    assert said(bide(home, "jobs", "cancel", a, url=one_url)) == "1 running job asked to stop.\n"
    assert mail.fetch(a).cancelling
    assert "asked to stop" in said(bide(home, "jobs", "ls", url=one_url))
    assert "active, asked to stop" in said(bide(home, "jobs", "show", a, url=one_url))


def test_ids_that_lead_nowhere_exit_with_3_and_the_others_are_changed(
    home: Path, one_url: str, mail: Queue
) -> None:
    (a,) = delayed(mail, 1)
    for options in ([], ["-q", "mail"]):
        done = bide(home, "jobs", "cancel", "nope", a, *options, url=one_url)
        assert said(done, 3) == "1 job cancelled.\n"
        assert "There is no job 'nope'" in done.stderr
    assert "'nope'" in error_of(bide(home, "jobs", "delete", "nope", url=one_url), 3)


def test_changes_are_reported_as_json(home: Path, one_url: str, mail: Queue) -> None:
    (a,) = delayed(mail, 1)
    done = bide(home, "jobs", "cancel", a, "nope", "--json", url=one_url)
    assert json.loads(said(done, 3)) == {
        "changed": 1,
        "jobs": [
            {"queue": "mail", "id": a, "word": "ok"},
            {"queue": None, "id": "nope", "word": "gone"},
        ],
    }


# -- in bulk


@pytest.mark.slow
def test_in_bulk_the_count_is_shown_and_asked_first(home: Path, one_url: str, mail: Queue) -> None:
    made = delayed(mail, 3)
    args = ("jobs", "cancel", "-q", "mail", "-s", "delayed")
    refused = error_of(bide(home, *args, url=one_url), 2)
    assert "Cancel 3 delayed jobs of mail? There is no terminal to ask at; add" in refused
    no = at_terminal(home, *args, url=one_url, types={"[y/N]": "\n"})
    assert (no.code, "Nothing was changed." in no.text) == (0, True)
    assert set(states(mail, made)) == {"delayed"}
    yes = at_terminal(home, *args, url=one_url, types={"3 delayed jobs of mail? [y/N]": "y\n"})
    assert (yes.code, "3 jobs cancelled." in yes.text) == (0, True)
    assert set(states(mail, made)) == {"cancelled"}


def test_one_that_is_retried_while_the_question_stands_is_not_deleted(
    home: Path, one_url: str, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    (failed,) = fail(home, mail, "no such user")

    def answer(question: str, yes: bool) -> bool:
        mail.fetch(failed).retry(delay="1h")
        return True

    monkeypatch.setattr("bide.cli.jobs.confirmed", answer)
    done = bide(home, "jobs", "delete", "-q", "mail", "-s", "failed", url=one_url)
    assert said(done) == "0 jobs deleted; skipped: 1 delayed.\n"
    assert states(mail, [failed]) == ["delayed"]


def test_a_dry_run_by_id_leaves_out_what_could_not_be_changed(
    home: Path, one_url: str, mail: Queue
) -> None:
    a, b, runs = delayed(mail, 3)
    mail.fetch(b).cancel()
    take(mail, runs)
    done = bide(home, "jobs", "promote", a, b, "--dry-run", url=one_url)
    assert said(done, 1).endswith("Would promote 1 job; nothing was changed.\n")
    assert b not in done.stdout
    assert f"{b} is cancelled; only " in done.stderr
    args = ("jobs", "cancel", runs, "--dry-run", "--json")
    assert json.loads(said(bide(home, *args, url=one_url)))["would_change"] == 1
    report = json.loads(said(bide(home, *args, "--leave-running", url=one_url), 1))
    assert report == {"would_change": 0, "jobs": []}
    assert states(mail, [a, b, runs]) == ["delayed", "cancelled", "active"]


@pytest.mark.parametrize(("error", "code"), [(KeyboardInterrupt, 130), (ServerUnavailable, 1)])
def test_a_change_that_is_interrupted_says_what_it_has_done(
    home: Path,
    one_url: str,
    mail: Queue,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    code: int,
) -> None:
    def interrupted(*args: Any) -> Iterator[Any]:
        yield next(changes(*args))
        raise error

    monkeypatch.setattr(cli_jobs, "changes", interrupted)
    args = ("jobs", "cancel", "-q", "mail", "-s", "delayed", "-y")
    delayed(mail, 2_500)
    assert said(bide(home, *args, url=one_url), code) == "1,000 jobs cancelled.\n"
    report = json.loads(said(bide(home, *args, "--json", url=one_url), code))
    assert (report["changed"], len(report["jobs"])) == (1_000, 1_000)
    assert mail.counts().cancelled == 2_000


def test_a_dry_run_changes_nothing(home: Path, one_url: str, mail: Queue) -> None:
    made = delayed(mail, 13)
    args = ("jobs", "cancel", "-q", "mail", "-s", "delayed", "--dry-run")
    shown = said(bide(home, *args, url=one_url))
    assert made[0] in shown
    assert "... and 3 more" in shown
    assert shown.endswith("Would cancel 13 jobs; nothing was changed.\n")
    report = json.loads(said(bide(home, *args, "--json", url=one_url)))
    assert report["would_change"] == 13
    assert {job["id"] for job in report["jobs"]} == set(made)
    by_id = said(bide(home, "jobs", "cancel", made[0], "--dry-run", url=one_url))
    assert by_id.endswith("Would cancel 1 job; nothing was changed.\n")
    assert set(states(mail, made)) == {"delayed"}


def test_failed_jobs_are_retried_by_task_and_error(home: Path, one_url: str, mail: Queue) -> None:
    a, b, c = fail(home, mail, "no such order", "no money", "no such order")
    args = ("jobs", "retry", "-q", "mail", "--task", "shop:b*", "--error", "such", "-y")
    assert said(bide(home, *args, "--in", "1h", url=one_url)) == "2 jobs retried.\n"
    assert states(mail, [a, b, c]) == ["delayed", "failed", "delayed"]


def test_old_ones_are_deleted(home: Path, one_url: str, mail: Queue) -> None:
    (a,) = fail(home, mail, "x")
    (b,) = delayed(mail, 1)
    args = ("jobs", "delete", "-q", "mail", "-y", "--older-than")
    done = bide(home, *args, "1h", url=one_url)
    assert (done.returncode, done.stderr) == (0, "No job matches; nothing was changed.\n")
    assert said(bide(home, *args, "1us", url=one_url)) == "1 job deleted.\n"
    assert states(mail, [a, b]) == ["gone", "delayed"]


def test_all_delayed_jobs_of_a_user_are_one_line(
    home: Path, one_url: str, mail: Queue, other: Queue
) -> None:
    theirs = [
        mail.enqueue("shop:greet", "bob", times=3, delay="1h").id,
        mail.enqueue("shop:greet", name="bob", times=3, delay="1h", meta={"user": 42}).id,
    ]
    kept = mail.enqueue("shop:greet", "eve", times=3, delay="1h", group="eve").id
    args = ("jobs", "cancel", "-q", "mail", "-s", "delayed", "-y")

    def cancels(*filter: str) -> str:
        return said(bide(home, *args, "--dry-run", *filter, url=one_url)).splitlines()[-1]

    assert "cancel 1 job;" in cancels("--arg", "name=bob")  # only the one that was named
    (home / "pyproject.toml").write_text('[tool.bide.worker]\nmodules = ["shop"]')
    by_name = (*args, "--dry-run", "--arg", "name=bob")
    # It imports modules, so it has a process of its own.
    done = bide(home, *by_name, url=one_url, PYTHONDONTWRITEBYTECODE="1")
    assert "cancel 2 jobs;" in said(done)
    (home / "pyproject.toml").write_text('[tool.bide.worker]\nmodules = ["nosuch"]')
    done = bide(home, *by_name, url=one_url, PYTHONDONTWRITEBYTECODE="1")
    assert "cancel 1 job;" in done.stdout
    assert "'nosuch' cannot be imported" in done.stderr
    assert "positional arguments have no names here" in done.stderr
    (home / "pyproject.toml").unlink()
    assert "cancel 1 job;" in cancels("--arg", "0=bob")
    assert "cancel 3 jobs;" in cancels("--arg", "times=3")
    assert "cancel 0 jobs;" in cancels("--arg", 'times="3"')
    assert "cancel 1 job;" in cancels("--meta", "user=42")
    assert "cancel 1 job;" in cancels("--group", "eve")
    assert "cancel 3 jobs;" in cancels("--until", "2199-01-01T00:00Z")
    assert "cancel 0 jobs;" in cancels("--since", "2199-01-01T00:00Z")
    assert said(bide(home, *args, "--group", "eve", url=one_url)) == "1 job cancelled.\n"
    assert states(mail, [*theirs, kept]) == ["delayed", "delayed", "cancelled"]


def test_what_is_due_at_once_is_spread(home: Path, one_url: str, mail: Queue) -> None:
    made = [mail.enqueue("shop:greet").id for _ in range(4)]
    args = ("jobs", "reschedule", "-q", "mail", "-s", "waiting", "--spread", "40s", "-y")
    assert said(bide(home, *args, url=one_url)) == "4 jobs spread.\n"
    due = [job.due.timestamp() for job in mail.fetch_many(made) if job]
    assert [round(at - due[0], -1) for at in due] == [0, 10, 20, 30]
    mail.promote_many(made)
    mail.enqueue("shop:greet", delay="1h", priority=9)
    args = ("jobs", "reschedule", "-q", "mail", "--task", "shop:*", "--spread", "50s", "-y")
    assert said(bide(home, *args, url=one_url)) == "5 jobs spread.\n"
    due = [job.due.timestamp() for job in mail.fetch_many(made) if job]
    assert [round(at - due[0], -1) for at in due] == [0, 10, 20, 30]
    ids = ("jobs", "reschedule", *made, "--spread", "20s")
    assert said(bide(home, *ids, url=one_url)) == "4 jobs spread.\n"


def test_all_queues_or_those_named_and_no_more_than_the_limit(
    home: Path, one_url: str, mail: Queue, other: Queue
) -> None:
    made = delayed(mail, 3), delayed(other, 3)
    args = ("jobs", "promote", "-s", "delayed", "-y")
    assert "1 job promoted" in said(bide(home, *args, "-q", "other", "-n", "1", url=one_url))
    assert states(other, made[1]) == ["waiting", "delayed", "delayed"]
    one = ("--task", "shop:*", "--all-queues", "-n", "1")
    (listed,) = said(bide(home, "jobs", "ls", "--ids", *one[:2], *one[3:], url=one_url)).split()
    told = said(bide(home, "jobs", "cancel", *one, "--dry-run", "--json", url=one_url))
    assert [job["id"] for job in json.loads(told)["jobs"]] == [listed] == made[1][:1]
    assert "5 jobs promoted" in said(bide(home, *args, "--all-queues", url=one_url))
    assert set(states(mail, made[0]) + states(other, made[1])) == {"waiting"}


def test_what_is_due_soon_is_put_off(home: Path, one_url: str, mail: Queue) -> None:
    (soon,) = delayed(mail, 1)
    late = mail.enqueue("shop:greet", delay="5h").id
    args = ("jobs", "reschedule", "-q", "mail", "--due-before", "2h", "--in", "1d", "-y")
    assert said(bide(home, *args, url=one_url)) == "1 job rescheduled.\n"
    assert mail.fetch(soon).due > mail.fetch(late).due


def test_ten_thousand_jobs_are_changed_while_more_come(
    home: Path, one_url: str, mail: Queue
) -> None:
    delayed(mail, 10_000)
    args = ("jobs", "cancel", "-q", "mail", "-s", "delayed", "-y")
    assert said(bide(home, *args, url=one_url)) == "10,000 jobs cancelled.\n"
    assert mail.counts().delayed == 0


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["cancel"], 2, "Name the jobs to cancel: by id, or with --state"),
        (["cancel", "-q", "mail"], 2, "Name the jobs to cancel"),
        (["cancel", "-q", "mail", "-n", "3"], 2, "Name the jobs to cancel"),
        (["delete", "-s", "failed"], 2, "Name the queue whose jobs to delete: --queue NAME"),
        (["delete", "-s", "failed", "-q", "mail", "--all-queues"], 2, "not both"),
        (["delete", "-s", "failed", "-q", "mial"], 3, "did you mean 'mail'?"),
        (
            ["delete", "-s", "active", "-q", "mail"],
            2,
            "Jobs that are active cannot be deleted; only",
        ),
        (
            ["retry", "-s", "delayed", "-q", "mail"],
            2,
            "Jobs that are delayed cannot be retried; only",
        ),
        (["retry", "-s", "lost"], 2, "'failed'"),
        (["cancel", "x", "-s", "delayed"], 2, "Name jobs by id or choose them by options"),
        (["cancel", "x", "--all-queues"], 2, "Name jobs by id or choose them by options"),
        (["reschedule", "x"], 2, "Give the due time: --in 5m"),
        (["reschedule", "x", "--in", "1", "--at", "2035-01-01T00:00Z"], 2, "not both"),
        (["reschedule", "x", "--in", "soon"], 2, "is not a duration"),
        (["reschedule", "x", "--in", "5m", "--spread", "5m"], 2, "Give one of --in, --at and"),
        (["reschedule", "x", "--spread", "0s"], 2, "the time over which to spread"),
        (["reschedule", "x", "--spread", "ten"], 2, "--spread='ten' is not a duration"),
        (["cancel", "--arg", "user_id", "-q", "mail"], 2, "write it as NAME=VALUE"),
        (["cancel", "--meta", "=1", "-q", "mail"], 2, "write it as NAME=VALUE"),
        (["cancel", "--since", "2035-01-01T00:00", "-q", "mail"], 2, "has no time zone"),
        (["retry", "x", "--at", "2035-01-01T00:00"], 2, "has no time zone"),
        (["reschedule", "x", "--at", ""], 2, "--at ''"),
        (["retry", "x", "--at", ""], 2, "--at ''"),
        (["cancel", "-q", "mail", "--error", ""], 2, "--error must be text to look for, not ''"),
        (
            ["ls", "--since", "2035-01-02T00:00Z", "--until", "2035-01-01T00:00Z"],
            2,
            "--since is not before --until, so no job can match",
        ),
        (["ls", "--ids", "--json"], 2, "Give --ids or --json, not both."),
        (["cancel", "a b"], 2, "job id"),
        (["delete", "-s", "failed", "-q", "mail", "--older-than", "x"], 2, "--older-than='x'"),
        (["delete", "-s", "failed", "-q", "mail", "--due-before", "x"], 2, "--due-before 'x'"),
        (["ls", "-n", "0"], 2, "1<=x<="),
        (["show"], 2, "ID"),
    ],
)
def test_each_misuse_has_one_sentence(
    home: Path, one_url: str, mail: Queue, args: list[str], code: int, says: str
) -> None:
    made = delayed(mail, 2)
    assert says in error_of(bide(home, "jobs", *args, url=one_url), code)
    assert states(mail, made) == ["delayed", "delayed"]
