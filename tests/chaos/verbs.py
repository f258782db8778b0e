"""Verbs as round trips, where one verb may take several."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from bide.model.ids import new_id
from bide.protocol.commands import Command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared, Receipt
from bide.protocol.commands.worker import Settle
from bide.protocol.keys import Keys


class Runs(Protocol):
    """What both executors can do, called from a test."""

    def run(self, command: Command[Any]) -> Any: ...
    def run_many(self, commands: Sequence[Command[Any]]) -> list[Any]: ...


def enqueue_all(client: Runs, keys: Keys, jobs: Sequence[Prepared]) -> list[Receipt]:
    """Add any number of jobs."""
    trips = enqueue_commands.enqueue_many(keys, jobs)
    return [receipt for trip in trips for reply in client.run_many(trip) for receipt in reply]


def settle_calls(keys: Keys, settles: Sequence[Settle]) -> list[Command[Any]]:
    """The calls that apply any number of outcomes."""
    calls: list[Command[Any]] = []
    while settles:
        count = worker_commands.fitting(settles)
        calls.append(worker_commands.settle(keys, settles[:count]))
        settles = settles[count:]
    return calls


def empty_all(client: Runs, keys: Keys) -> int:
    """Empty a queue, step by step; how many jobs there were."""
    name = new_id()
    while (step := client.run(job_commands.purge(keys, name))).busy:
        pass
    removed: int = step.aside
    while step.more:
        step = client.run(job_commands.purge(keys, None))
    return removed
