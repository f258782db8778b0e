"""What a call of one script costs the server, for one job and for a hundred.

Many calls in a row, by one connection: the least of the rounds, which is what a busy machine
disturbs least. Times are EVALSHA's own, by `commandstats`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import redis

from benchmarks import tasks
from benchmarks.lab import QUEUE, Lab
from benchmarks.report import Report, Rows
from bide.protocol.commands import Command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.worker import Settle
from bide.protocol.keys import keys_of
from bide.protocol.scripts import load

CALLS = 100
LEASE_US = 60_000_000
KEYS = keys_of(QUEUE)


class Meter:
    """Makes calls, and keeps the least that a job of each kind has cost."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.direct = redis.Redis.from_url(lab.server.url)
        self.rows: Rows = {}

    def make(self, what: str, commands: Sequence[Command[Any]], jobs: int, many: bool) -> list[Any]:
        """The results of calls for so many jobs each."""
        pipe = self.direct.pipeline(transaction=False)
        for command in commands:
            sha = load(command.script).sha
            pipe.execute_command(  # type: ignore[no-untyped-call]
                "EVALSHA", sha, len(command.keys), *command.keys, *command.args
            )
        before = self.lab.scripts()[1]
        replies = pipe.execute()
        cost = (self.lab.scripts()[1] - before) / len(commands) / jobs
        row = self.rows.setdefault(what, {})
        column = "µs a job, 100 a call" if many else "µs, one job a call"
        row[column] = min(cost, row.get(column) or cost)
        return [command.parse(reply) for command, reply in zip(commands, replies, strict=True)]


def run(lab: Lab) -> list[Report]:
    """Rounds of enqueue, claim and settle."""
    meter, queue, seq = Meter(lab), lab.queue(), 0
    for script in ("enqueue", "claim", "settle"):
        meter.direct.script_load(load(script).text)
    for number in range(20 if lab.quick else 100):
        if number % 20 == 0:  # among as many jobs in all runs, and not in hashes that are new
            lab.empty()
        for many in (False, True):
            size, calls = (CALLS, 1) if many else (1, CALLS)
            for what, delay in (("enqueue, due in an hour", 3600), ("enqueue, due at once", 0)):
                jobs = [queue.prepare(tasks.nothing, (n,), delay=delay) for n in range(CALLS)]
                each = [jobs[i : i + size] for i in range(0, CALLS, size)]
                meter.make(
                    what, [enqueue_commands.enqueue(KEYS, some) for some in each], size, many
                )
            claims = []
            for _ in range(calls):
                seq += 1
                claims.append(worker_commands.claim(KEYS, "worker", seq, size, LEASE_US, 0, arm=0))
            found = meter.make("claim", claims, size, many)
            settles = [[Settle(job.id, job.token, "complete") for job in one.jobs] for one in found]
            meter.make(
                "settle", [worker_commands.settle(KEYS, some) for some in settles], size, many
            )
    queue.close()
    meter.direct.close()
    return [Report("What a call costs the server", meter.rows, "call", "EVALSHA, least of rounds")]
