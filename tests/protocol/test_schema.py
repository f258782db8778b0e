"""A queue that a newer release has laid out is touched by no script of this one."""

from __future__ import annotations

from typing import Any

import pytest

from bide.errors import ClientTooOld
from bide.protocol.commands import Command
from bide.protocol.commands import jobs as job_commands
from bide.protocol.keys import GLOBAL
from bide.protocol.scripts import load, names
from tests.support.operations import OPERATIONS
from tests.support.probe import Probe

COMMANDS: dict[str, Command[Any]] = {
    samples[0][1].script: samples[0][1] for samples in OPERATIONS.values()
}
OF_WORKERS_ALONE = {"worker_leave"}
"""They touch nothing but what a worker has said of itself, which no schema changes."""


def test_every_script_of_a_queue_looks() -> None:
    of_queues = {name for name in names() if not {*load(name).keys} <= {*GLOBAL}}
    assert {name for name in of_queues if "meta" not in load(name).keys} == OF_WORKERS_ALONE


@pytest.mark.slow
@pytest.mark.parametrize("name", [n for n in COMMANDS if "meta" in load(n).keys])
def test_a_newer_schema_is_refused_and_nothing_is_touched(q: Probe, name: str) -> None:
    q.add("b")
    q.raw.hset(q.keys["meta"], "schema", 2)
    before = {key: q.raw.dump(key) for key in q.raw.scan_iter()}
    (error,) = q.executor.attempt_many([COMMANDS[name]._replace(keys=q.keys.of(load(name).keys))])
    assert isinstance(error, ClientTooOld)
    assert f"{q.keys['meta']} at " in str(error)
    assert {key: q.raw.dump(key) for key in q.raw.scan_iter()} == before


def test_others_in_the_same_round_trip_are_served(q: Probe) -> None:
    q.add("b")
    q.raw.hset("bide:{other}", "schema", 7)
    other = COMMANDS["counts"]._replace(
        keys=tuple(k.replace("{mail}", "{other}") for k in COMMANDS["counts"].keys)
    )
    error, counts = q.executor.attempt_many([other, job_commands.counts(q.keys)])
    assert isinstance(error, ClientTooOld)
    assert counts.waiting == 1


def test_the_schema_that_is_known_is_not_refused(q: Probe) -> None:
    q.raw.hset(q.keys["meta"], "schema", 1)
    assert q.add("b")[0].created
