"""Waiting for a replica or the disk, driven by hand: what is sent, and what the answers mean."""

from __future__ import annotations

from typing import Any

import pytest
from redis import exceptions as lib
from redis.crc import key_slot

from bide.client.execute import AfterCalls, ClientState, Send, Sleep, Steps, execute
from bide.client.topology import topology_for
from bide.errors import (
    DurabilityTimeout,
    DurabilityUnavailable,
    ServerFull,
    ServerUnavailable,
    UsageError,
)
from bide.model.options import CONFIRM_MS, Kinds, check_durability
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.enqueue import Prepared, Receipt
from bide.protocol.keys import keys_of
from bide.protocol.scripts import SERVER_CLOCK

KEYS = keys_of("mail")
NEW = [b"ok", 7, 9]
WAIT = ("WAIT", 1, CONFIRM_MS)
WAITAOF = ("WAITAOF", 1, 0, CONFIRM_MS)
GONE = lib.ConnectionError("Connection closed by server.")


def talk(*kinds: Kinds, retry_for: float = 10.0) -> Steps:
    """One enqueue for each, with what it waits for."""
    jobs = [Prepared(f"j{i}", "+0", 5, b"{}", k[-1] if k else "local") for i, k in enumerate(kinds)]
    commands = [
        enqueue_commands.enqueue(KEYS, [job], each) for job, each in zip(jobs, kinds, strict=True)
    ]
    return execute(commands, ClientState("redis://host", SERVER_CLOCK, retry_for, True))


def names(step: Any) -> list[Any]:
    """The calls of a round trip, without the scripts' arguments."""
    assert isinstance(step, Send)
    return ["EVALSHA" if call[0] == "EVALSHA" else call for call in step.calls]


def end(steps: Steps, *outcomes: Any) -> list[Any]:
    """Answer each Send in turn, and never wait; what came of it all."""
    left = list(outcomes)
    step = next(steps)
    try:
        while True:
            step = next(steps) if isinstance(step, Sleep) else steps.send(left.pop(0))
    except StopIteration as stop:
        assert not left
        return stop.value  # type: ignore[no-any-return]


def test_without_a_wish_nothing_is_waited_for() -> None:
    assert names(next(talk(()))) == ["EVALSHA"]


@pytest.mark.parametrize(
    ("kinds", "calls"),
    [(("replica",), [WAIT]), (("fsync",), [WAITAOF]), (("replica", "fsync"), [WAIT, WAITAOF])],
)
def test_the_wait_stands_behind_the_script_in_the_same_round_trip(
    kinds: Kinds, calls: list[Any]
) -> None:
    assert names(next(talk(kinds))) == ["EVALSHA", *calls]


def test_one_wait_serves_all_calls_of_the_round_trip() -> None:
    assert names(next(talk(("replica",), ("replica",)))) == ["EVALSHA", "EVALSHA", WAIT]


@pytest.mark.parametrize("copies", [1, [1, 0]])
def test_what_was_confirmed_is_said(copies: Any) -> None:
    kind: Kinds = ("replica",) if copies == 1 else ("fsync",)
    assert end(talk(kind), [NEW, copies]) == [[Receipt("j0", 9, "created", kind[0])]]


@pytest.mark.parametrize(("kind", "copies"), [("replica", 0), ("fsync", [0, 0])])
def test_what_was_not_confirmed_is_an_error(kind: Any, copies: Any) -> None:
    (result,) = end(talk((kind,)), [NEW, copies])
    assert isinstance(result, DurabilityTimeout)


def test_of_two_one_that_is_missing_is_enough() -> None:
    (result,) = end(talk(("replica", "fsync")), [NEW, 1, [0, 0]])
    assert isinstance(result, DurabilityTimeout)


def test_who_asked_for_nothing_is_told_nothing() -> None:
    steps = talk(("replica",), ())
    assert names(next(steps)) == ["EVALSHA", WAIT, "EVALSHA"]
    first, second = end(talk(("replica",), ()), [NEW, 0, NEW])
    assert isinstance(first, DurabilityTimeout)
    assert second == [Receipt("j1", 9, "created")]


def test_another_error_of_the_call_stands() -> None:
    full = lib.OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")
    (result,) = end(talk(("replica",)), [full, 0])
    assert isinstance(result, ServerFull)


def test_the_wait_goes_where_the_script_before_it_goes() -> None:
    step = next(talk(("replica", "fsync"), ()))
    assert isinstance(step, Send)
    behind = AfterCalls((0,))
    assert step.routes == [KEYS["meta"], behind, behind, KEYS["meta"]]


def test_what_was_written_before_a_slot_moved_is_confirmed_by_a_repeat() -> None:
    """The node that had it may lose it, and the WAIT was answered by another."""
    routes = topology_for("redis+cluster://h:1")
    old, new = "redis://h:1", "redis://h:2"
    meant = {
        old: [[NEW, lib.MovedError(f"{key_slot(KEYS['meta'].encode())} h:2"), 0]],
        new: [[NEW, 1], [[b"ok", 7, 0], 1]],
    }

    def sent(step: Any, owner: int) -> Any:
        assert isinstance(step, Send)
        trips = next(delivery := routes.deliver(step.calls, step.routes))
        try:
            while True:
                trips = delivery.send(
                    [
                        [[[0, 16383, [b"h", owner]]]]
                        if trip.is_question
                        else meant[trip.node].pop(0)
                        for trip in trips
                    ]
                )
        except StopIteration as stop:
            return stop.value

    steps = talk(("replica",), ("replica",))
    first = next(steps)
    assert names(first) == ["EVALSHA", "EVALSHA", WAIT]
    assert isinstance(steps.send(sent(first, owner=1)), Sleep)
    second = next(steps)
    assert names(second) == ["EVALSHA", WAIT]
    with pytest.raises(StopIteration) as over:
        steps.send(sent(second, owner=2))
    assert [one.confirmed for (one,) in over.value.value] == ["replica", "replica"]


def test_what_a_repeat_adds_is_waited_for_again() -> None:
    """The WAIT of the first round trip did not count what the second writes."""
    steps = talk(("replica",))
    next(steps)
    loads = steps.send([lib.NoScriptError("No matching script."), 1])
    assert names(loads)[0][:2] == ("SCRIPT", "LOAD")
    assert names(steps.send([b"sha"])) == ["EVALSHA", WAIT]


@pytest.mark.parametrize(
    "error",
    [
        lib.ResponseError(
            "UNBLOCKED force unblock from blocking operation, instance state changed"
        ),
        lib.ReadOnlyError("You can't write against a read only replica."),
    ],
)
def test_a_wait_that_a_failover_ends_is_begun_again_with_the_same_id(error: Exception) -> None:
    steps = talk(("replica",))
    assert end(steps, [NEW, error], [[b"ok", 7, 0], 1]) == [
        [Receipt("j0", 0, "duplicate", "replica")]
    ]


def test_a_wait_that_is_refused_leaves_the_job_unconfirmed() -> None:
    (result,) = end(talk(("fsync",)), [NEW, lib.ResponseError("WAITAOF cannot be used now")])
    assert isinstance(result, DurabilityTimeout)
    assert "WAITAOF cannot be used now" in str(result)


def test_what_cannot_be_had_is_refused() -> None:
    (result,) = end(talk(("replica",)), [[b"cannot", b"replica"], 1])
    assert isinstance(result, DurabilityUnavailable)
    assert "connect one" in str(result)
    assert str(result).endswith("Nothing was added.")


def test_but_not_where_an_earlier_sending_may_have_added_it() -> None:
    (result,) = end(talk(("replica",)), GONE, [[b"cannot", b"replica"], 1])
    assert isinstance(result, DurabilityTimeout)
    assert "may exist" in str(result)


def test_no_answer_at_all_is_a_server_that_cannot_be_reached() -> None:
    with pytest.raises(ServerUnavailable):
        end(talk(("replica",), retry_for=0), GONE)


def test_the_question_alone_waits_for_nothing() -> None:
    asked = enqueue_commands.enqueue(KEYS, [], ("fsync",))
    steps = execute([asked, job_commands.counts(KEYS)], ClientState("", SERVER_CLOCK, 0, True))
    assert names(next(steps)) == ["EVALSHA", "EVALSHA"]


@pytest.mark.parametrize("odd", ["disk", "", 1, True, ["fsync"]])
def test_what_is_no_durability_is_refused(odd: Any) -> None:
    with pytest.raises(UsageError, match="'local', 'replica' or 'fsync'"):
        check_durability(odd)
