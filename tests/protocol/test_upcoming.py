"""What is due next: delayed jobs in due order, whatever their priority."""

from __future__ import annotations

import pytest

from bide.errors import UsageError
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.enqueue import Prepared
from tests.support.probe import BODY, LEASE, SECOND, Probe


def upcoming(q: Probe, within: float = 0, count: int = 50) -> list[str]:
    command = job_commands.upcoming(q.keys, round(within * SECOND), count)
    return [id for id, _ in q.run(command)]


def later(q: Probe, id: str, seconds: float, priority: int = 5) -> int:
    (receipt,) = q.add(id, when=f"+{round(seconds * SECOND)}", priority=priority)
    return receipt.due_us


def test_in_due_order_over_all_priorities(q: Probe) -> None:
    due = {
        "third": later(q, "third", 3, priority=9),
        "first": later(q, "first", 1, priority=0),
        "fourth": later(q, "fourth", 4),
        "second": later(q, "second", 2),
    }
    found = q.run(job_commands.upcoming(q.keys, 0, 50))
    assert [id for id, _ in found] == ["first", "second", "third", "fourth"]
    assert dict(found) == due


def test_of_one_instant_in_the_order_of_ids(q: Probe) -> None:
    at = q.now + SECOND
    for id, priority in (("c", 9), ("a", 0), ("d", 5), ("b", 5)):
        q.add(id, when=f"={at}", priority=priority)
    assert upcoming(q) == ["a", "b", "c", "d"]


def test_only_the_first_of_them(q: Probe) -> None:
    for i in range(6):
        later(q, f"j{i}", i + 1, priority=i)
    assert upcoming(q, count=3) == ["j0", "j1", "j2"]
    assert upcoming(q, count=0) == []


def test_only_so_far_ahead(q: Probe) -> None:
    for seconds in (1, 30, 60, 90):
        later(q, f"in-{seconds}", seconds, priority=seconds % 10)
    assert upcoming(q, within=61) == ["in-1", "in-30", "in-60"]
    assert upcoming(q, within=0.5) == []
    assert upcoming(q, within=61, count=1) == ["in-1"]


def test_the_edge_belongs_to_what_lies_ahead(q: Probe) -> None:
    later(q, "a", 10)
    command = job_commands.upcoming(q.keys, 10 * SECOND, 50)
    reply = q.reply(command)
    assert command.parse(reply) == [("a", reply[3])]
    assert reply[3] <= reply[1] + 10 * SECOND


def test_what_waits_already_is_not_to_come(q: Probe) -> None:
    q.add("waits")
    later(q, "soon", 1)
    assert upcoming(q) == ["soon"]
    q.move(1)
    assert upcoming(q) == []


def test_nor_is_what_runs_has_ended_or_was_set_aside(q: Probe) -> None:
    q.take("runs")
    later(q, "cancelled", 1)
    q.cancel("cancelled")
    later(q, "emptied", 1)
    q.run(job_commands.purge(q.keys, "this"))
    assert upcoming(q) == []


def test_retries_snoozes_and_suspects_are(q: Probe) -> None:
    q.settle(q.take("again"), "retry", f"+{3 * SECOND}")
    q.settle(q.take("snoozed"), "snooze", f"+{2 * SECOND}")
    q.run(job_commands.reschedule(q.keys, ["again", "snoozed"], f"+{3600 * SECOND}"))
    q.add("suspect")
    for _ in range(2):
        q.claim("doomed")
        q.move(LEASE + 1)
        q.claim("undertaker", 0)
    q.reschedule("suspect", f"+{SECOND}")
    assert list(q.holding().sets["due:alone"]) == ["suspect"]
    assert upcoming(q) == ["suspect", "again", "snoozed"]


def test_a_paused_queue_shows_them_too(q: Probe) -> None:
    q.run(job_commands.pause(q.keys))
    later(q, "a", 1)
    assert upcoming(q) == ["a"]


def test_as_many_as_one_call_gives(q: Probe) -> None:
    most = job_commands.MAX_UPCOMING
    ids = [f"j{i:04}" for i in range(most + 50)]
    for i in range(0, len(ids), 250):
        q.add_many(*(Prepared(id, f"+{3600 * SECOND}", 5, BODY) for id in ids[i : i + 250]))
    assert upcoming(q, count=most) == ids[:most]
    for count in (-1, most + 1, True, 2.5):
        with pytest.raises(UsageError, match=f"must be a whole number from 0 to {most}"):
            job_commands.upcoming(q.keys, 0, count)  # type: ignore[arg-type]


def test_looking_changes_nothing(q: Probe) -> None:
    later(q, "a", 1)
    before = q.holding()
    upcoming(q)
    upcoming(q, within=5)
    assert q.holding() == before
