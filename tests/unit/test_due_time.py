"""When a job is due, as it travels."""

from __future__ import annotations

from typing import Any

import pytest

from bide.errors import UsageError
from bide.protocol.commands.enqueue import (
    CHUNK,
    CONSTRAINTS_CHUNK,
    Prepared,
    check_when,
    enqueue,
    enqueue_many,
    jobs_in,
)
from bide.protocol.keys import keys_of


@pytest.mark.parametrize("text", ["+0", "+1000000", "=1700000000000000"])
def test_what_says_when_is_let_through(text: str) -> None:
    assert check_when(text) == text


@pytest.mark.parametrize("text", ["", "+", "10m", "=-1", "+1.5", "+" + "9" * 17, "+1\n", None, 5])
def test_what_a_script_would_refuse_is_refused(text: Any) -> None:
    with pytest.raises(UsageError, match="is not a due time"):
        check_when(text)


def job(id: str, *parents: str) -> Prepared:
    return Prepared(id, "+0", 5, b"{}", constraints="d=-" if parents else "", parents=parents)


def test_what_waits_comes_with_what_it_waits_for_or_in_a_later_trip() -> None:
    """For each round trip, how many jobs each of its calls adds."""

    def trips(jobs: list[Prepared]) -> list[list[int]]:
        return [[*map(jobs_in, trip)] for trip in enqueue_many(keys_of("mail"), jobs)]

    most = CONSTRAINTS_CHUNK
    pairs = [one for n in range(most) for one in (job(f"a{n}"), job(f"b{n}", f"a{n}"))]
    assert trips(pairs) == [[most, most]]
    fan_out = [job("a"), *(job(f"b{n}", "a") for n in range(3 * most - 1))]
    assert trips(fan_out) == [[most], [most, most]]
    parents = [f"a{n}" for n in range(2 * CHUNK)]
    assert trips([*map(job, parents), job("b", *parents), job("c", "b")]) == [[most] * 5, [1], [1]]
    assert trips([job("a"), job("b", "{other}x"), job("c", "a")]) == [[1, 1], [1]]
    assert trips([job("b", "{other}x"), job("c", "{other}x")]) == [[1, 1]]


def test_only_a_job_alone_goes_without_some_keys() -> None:
    """What does may have to be sent again, and would come behind others then."""

    def keys(*jobs: Prepared) -> list[int]:
        (trip,) = enqueue_many(keys_of("mail"), jobs)
        return [len(command.keys) for command in trip]

    (few,) = keys(job("a"))
    (two,) = keys(job("a"), job("b"))
    assert few < two
    assert keys(job("a"), *[job(f"b{n}") for n in range(CHUNK)]) == [two, two]


@pytest.mark.parametrize("priority", [11, -1, 5.5, "5", None])
def test_whether_a_priority_can_be_meant_is_for_the_script_to_say(priority: Any) -> None:
    command = enqueue(keys_of("mail"), [job("a")._replace(priority=priority)])
    assert command.args[2] is priority
