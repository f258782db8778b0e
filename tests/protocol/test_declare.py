"""Declared settings: applied at a worker's start, never over what people have configured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from bide.errors import BideError
from bide.model.limits import KEEP, Declared, Retention
from bide.protocol.commands import jobs as job_commands
from bide.queue.core import declared_of
from tests.support.probe import Probe

DECLARED_FOR = 31


@dataclass
class Program:
    """A worker's program that declares settings."""

    q: Probe
    settings: Any

    def starts(self) -> list[str] | None:
        return self.q.run(job_commands.declare(self.q.keys, declared_of(self.settings), True))

    def lives(self) -> list[str] | None:
        return self.q.run(job_commands.declare(self.q.keys, declared_of(self.settings), False))


def kept(q: Probe) -> Retention:
    return q.run(job_commands.counts(q.keys)).retention


def test_what_is_declared_is_applied_and_what_is_left_out_stays(q: Probe) -> None:
    assert Program(q, {"rate": "5/s", "burst": 2}).starts() == []
    assert q.limits[:3] == ("5/s", 2, None)
    assert Program(q, {"concurrency": 3, "retention": Retention(count=7)}).starts() == []
    assert q.limits[:3] == ("5/s", 2, 3)
    assert kept(q).count == 7
    assert Program(q, {"concurrency": 4, "rate": None}).starts() == []
    assert q.limits[:3] == (None, None, 4)


def test_what_people_have_configured_stays(q: Probe) -> None:
    program = Program(q, {"rate": "5/s", "concurrency": 3, "retention": Retention(count=7)})
    program.starts()
    q.limit(rate="1/s")
    q.configure(count=9)
    assert program.starts() == ["rate", "retention"]
    assert (q.limits[:3], kept(q).count) == (("1/s", 1, 3), 9)
    newer = Program(q, {"rate": "9/s", "concurrency": 4, "retention": Retention(count=8)})
    assert newer.starts() == ["rate", "retention"]
    assert (q.limits[:3], kept(q).count) == (("1/s", 1, 4), 9)


def test_a_limit_that_people_have_removed_does_not_come_back(q: Probe) -> None:
    program = Program(q, {"rate": "5/s", "concurrency": 3})
    program.starts()
    q.limit(rate=None, concurrency=None)
    assert program.starts() == ["rate", "concurrency"]
    assert q.limits[:3] == (None, None, None)


def test_that_no_limit_is_declared_is_known(q: Probe) -> None:
    Program(q, {"rate": None, "concurrency": None}).starts()
    q.limit(rate="1/s")
    counts = q.run(job_commands.counts(q.keys))
    assert counts.overridden == {"rate": None, "burst": None}
    assert counts.limits.declared == "no rate"


def test_what_was_configured_before_anything_was_declared_stays(q: Probe) -> None:
    q.limit(rate="1/s")
    assert Program(q, {"rate": "5/s"}).starts() == ["rate"]
    assert q.limits.rate == "1/s"


def test_who_configures_the_declared_value_lets_the_code_decide_again(q: Probe) -> None:
    Program(q, {"rate": "5/s"}).starts()
    q.limit(rate="1/s")
    assert Program(q, {"rate": "9/s"}).starts() == ["rate"]
    q.limit(rate="9/s")
    assert Program(q, {"rate": "7/s"}).starts() == []
    assert q.limits.rate == "7/s"


def test_after_a_deployment_the_settings_are_those_of_the_code_that_runs(q: Probe) -> None:
    old, new = Program(q, {"rate": "5/s"}), Program(q, {"rate": "9/s"})
    old.starts()
    new.starts()
    assert old.lives() is None
    assert q.limits.rate == "9/s"
    old.starts()  # a worker of old code is replaced, in the middle of the deployment
    assert q.limits.rate == "5/s"
    q.move(DECLARED_FOR - 2)
    assert (new.lives(), q.limits.rate) == (None, "5/s")
    assert old.lives() == []
    q.move(DECLARED_FOR - 2)
    assert new.lives() is None, "a worker that lives declares others"
    q.move(2)
    assert new.lives() == []
    assert q.limits.rate == "9/s"
    q.limit(rate="1/s")
    q.move(DECLARED_FOR)
    assert (new.lives(), old.lives()) == (["rate"], None)
    assert q.limits.rate == "1/s"


def test_a_repeat_changes_nothing_and_wakes_nobody(q: Probe) -> None:
    program = Program(q, {"rate": "5/s", "retention": Retention()})
    program.starts()
    q.hear()
    before = q.holding().meta
    assert program.starts() == []
    assert program.lives() == []
    assert q.wakeups() == 0
    after = q.holding().meta
    assert {k: v for k, v in after.items() if k not in ("declared_until", "clock")} == {
        k: v for k, v in before.items() if k not in ("declared_until", "clock")
    }


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        (Declared("1 1"), "rate"),
        (Declared(KEEP, "0"), "concurrency"),
        (Declared(KEEP, KEEP, "1"), "group_rate"),
        (Declared(KEEP, KEEP, KEEP, "1 2 3"), "retention"),
    ],
)
def test_what_cannot_be_meant_is_refused(q: Probe, settings: Declared, what: str) -> None:
    with pytest.raises(BideError, match=f"BADARG declare {what}"):
        q.run(job_commands.declare(q.keys, settings, True))
    assert q.holding().meta.keys() <= {"clock"}
