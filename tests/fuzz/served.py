"""Targets on a real server: workers, scripts and commands meet what others have written.

Inputs are tried in batches, beside neighbours that nobody has touched; those must come through.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import redis

from bide import Queue, Worker
from bide.cli.main import run
from bide.client import blocking
from bide.errors import BideError
from bide.model.payload.body import Body, encode_body
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Outcome, Settle
from bide.protocol.keys import META, keys_of
from tests.fuzz import tasks
from tests.fuzz.mutate import Mutator
from tests.fuzz.pure import BODIES, NOTES, RECORDS, RESULTS, check_harmless
from tests.support.invariants import assert_legal

Try = Callable[[list[Mutator]], None]

NEIGHBOURS = 10
KEYS = keys_of("fuzz")


class Site:
    """One server, and one queue of it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.raw: Any = redis.Redis.from_url(url)
        self.client = blocking.Client(url, retry_for=0)
        self.queue = Queue("fuzz", url=url)

    def close(self) -> None:
        self.client.close()
        self.queue.close()
        self.raw.close()

    def neighbours(self) -> list[Any]:
        return self.queue.enqueue_many(
            [self.queue.prepare(tasks.neighbour, [n]) for n in range(NEIGHBOURS)]
        )

    def work(self) -> None:
        Worker(self.queue, modules=[tasks.__name__], concurrency=50).run(burst=True)

    def expire(self) -> None:
        """Have all leases end."""
        if held := self.raw.zrange(KEYS["active"], 0, -1):
            self.raw.zadd(KEYS["active"], dict.fromkeys(held, 1))

    def check(self, neighbours: list[Any]) -> None:
        """The neighbours have run, and nothing is stuck."""
        assert [job.refresh().result for job in neighbours] == [*range(NEIGHBOURS)]
        counts = self.queue.counts()
        assert (counts.waiting, counts.active) == (0, 0)


def bodies(site: Site, mutators: list[Mutator]) -> None:
    """A worker runs what it can, and fails the rest, each by itself."""
    site.raw.flushall()
    mutated = [mutator.bytes(BODIES) for mutator in mutators]
    jobs = [Prepared(f"odd-{i}", "+0", 5, body) for i, body in enumerate(mutated)]
    half = len(jobs) // 2
    site.queue.enqueue_many(jobs[:half])
    neighbours = site.neighbours()
    site.queue.enqueue_many(jobs[half:])
    site.work()
    site.check(neighbours)
    assert not tasks.imported()
    stored = site.raw.hmget(KEYS["jobs"], [job.id for job in jobs])
    assert stored == mutated, "the raw bytes are kept"


def records(site: Site, mutators: list[Mutator]) -> None:
    """Jobs with an odd record, odd notes, an odd result: they run, and can be looked at."""
    site.raw.flushall()
    ids = [f"odd-{i}" for i in range(len(mutators))]
    body = encode_body(Body("tests.fuzz.tasks:take", [1]))
    site.client.run(enqueue_commands.enqueue(KEYS, [Prepared(id, "+0", 5, body) for id in ids]))
    claim = worker_commands.claim(KEYS, "before", 1, len(ids) // 3, 10_000_000, 0)
    held = site.client.run(claim).jobs
    hashes = (("run", RECORDS), ("notes", NOTES), ("results", RESULTS))
    for mutator, id in zip(mutators, ids, strict=True):
        name, corpus = mutator.random.choice(hashes)
        site.raw.hset(KEYS[name], id, mutator.bytes(corpus))
    neighbours = site.neighbours()
    settles = [Settle(job.id, job.token, "retry", "+0", b"{}") for job in held[::2]]
    settles += [Settle(job.id, job.token, "complete") for job in held[1::2]]
    for settle in settles * 2:  # as after a lost reply
        site.client.run(worker_commands.settle(KEYS, [settle]))
    site.client.run(worker_commands.extend(KEYS, 1, [(job.id, job.token) for job in held[:5]]))
    for _ in range(3):
        site.expire()
        for seq in range(1 + len(ids) // 10):  # a claim takes ten leases that have ended
            site.client.run(worker_commands.claim(KEYS, "undertaker", seq + 1, 0, 10_000_000, 0))
            site.client.run(worker_commands.worker_leave(KEYS, "undertaker"))
        site.work()
    site.check(neighbours)
    assert None not in site.queue.fetch_many(ids), "none is lost"
    site.client.run(job_commands.retry(KEYS, ids, "+0"))
    site.work()
    site.client.run(job_commands.cancel(KEYS, ids[:25]))
    site.client.run(job_commands.delete(KEYS, ids))
    counts = site.queue.counts()
    assert (counts.waiting, counts.active, counts.failed) == (0, 0, 0)


VALUES = [b"1", b"1795214038547684", b"10000 1 10000 2 10000 3", b"1795214038547684 7"]
FIELDS = sorted(META.keys() - {"kind", "paused", "schema"})


def settings(site: Site, mutators: list[Mutator]) -> None:
    """An odd setting of a queue may make calls fail; it loses no job, and no other queue."""
    words: tuple[Outcome, ...] = ("complete", "fail", "retry")
    for mutator in mutators:
        site.raw.flushall()
        odd, value = mutator.random.choice(FIELDS), mutator.bytes(VALUES)
        jobs = [Prepared(id, "+0", 5, BODIES[0]) for id in "abcdef"]
        site.client.run(enqueue_commands.enqueue(KEYS, jobs))
        held = site.client.run(worker_commands.claim(KEYS, "w", 1, 3, 10_000_000, 0)).jobs
        site.raw.hset(KEYS["meta"], odd, value)
        told = [
            Settle(job.id, job.token, word, "+0" if word == "retry" else "")
            for job, word in zip(held, words, strict=True)
        ]
        calls: list[Any] = [
            enqueue_commands.enqueue(KEYS, [Prepared("g", "+0", 5, BODIES[0])]),
            worker_commands.settle(KEYS, told),
            worker_commands.claim(KEYS, "w", 2, 2, 10_000_000, 0),
            worker_commands.extend(KEYS, 1_000_000, [("d", 1)]),
            job_commands.cancel(KEYS, ["e"]),
            job_commands.counts(KEYS),
            enqueue_commands.enqueue(keys_of("other"), [Prepared("g", "+0", 5, BODIES[0])]),
        ]
        results = site.client.attempt_many(calls)
        failed = [result for result in results if isinstance(result, BideError)]
        assert not failed, (odd, value, failed)
        site.raw.hdel(KEYS["meta"], odd)
        assert_legal(site.raw, "fuzz")
        counts = site.client.run(job_commands.counts(KEYS))
        assert sum(counts[1:7]) in (6, 7), (odd, value, counts)


VERBS = ("ls", "show", "cancel", "retry", "promote", "reschedule", "delete")
FIRST: list[tuple[str, ...]] = [
    *(("jobs", verb) for verb in VERBS),
    *(("info",), ("queues",), ("upcoming",), ("workers",), ("acl",), ("enqueue",), ("health",)),
    *(("script", "enqueue"), ("doctor",), ("cron",), ("cron", "next"), ("cron", "run"), ()),
]
WORDS = """
info jobs upcoming queues cron ls next run delete workers stop health doctor acl script enqueue
pause resume -q fuzz --json
--state failed --task * --limit 5 --in 5m odd --at 2030-01-31T09:00:00+01:00 --older-than 1d --yes
--all-queues --error --dry-run --prefix bide --keys --offset 0 worker viewer --user x -- -
--priority tests.fuzz.tasks:take a=1 [1,2] --id 9 --no-check --help --max-lateness 1m --within empty
set 2d --retention --failed --due-before --url --queue -n
""".split()  # noqa: SIM905
WAITS = {"worker", "demo", "rq-timer", "events"}
"""Commands that go on, or start programs."""


def commands(site: Site, mutators: list[Mutator]) -> None:
    """A command line ends with a code and a sentence, whatever is typed."""
    site.raw.flushall()
    site.neighbours()
    for mutator in mutators:
        random = mutator.random
        args = [*random.choice(FIRST), *random.choices(WORDS, k=random.randrange(7))]
        for i in range(len(args)):
            if random.random() < 0.3:
                args[i] = mutator.text([args[i]])
        args = [arg.replace("\x00", "") for arg in args]  # which no command line can hold
        if WAITS & {*args}:
            continue
        out, err = io.StringIO(), io.StringIO()
        with (
            patch.dict(os.environ, {"BIDE_URL": site.url}),
            patch("sys.stdin", io.StringIO("odd\n\x00\n")),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            code = run(args)
        assert code in (0, 1, 2, 3), (code, args)
        check_harmless(out.getvalue())
        check_harmless(err.getvalue())
        assert code == 0 or err.getvalue() or out.getvalue(), args  # `health` finds, and says so


TARGETS: dict[str, tuple[float, int, Callable[[Site, list[Mutator]], None]]] = {
    "bodies run": (0.08, 200, bodies),
    "records met": (0.025, 100, records),
    "settings met": (0.01, 25, settings),
    "command lines": (0.03, 25, commands),
}
"""Name -> its share of all inputs, how many in a batch, and what is done with a batch."""


@contextlib.contextmanager
def opened(url: str) -> Iterator[Site]:
    site = Site(url)
    try:
        yield site
    finally:
        site.close()
