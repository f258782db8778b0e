"""What is given to `enqueue_many`, in batches."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from bide.errors import UsageError
from bide.ops.produce import Prepared
from bide.queue import batches
from bide.queue.batches import BATCH, Batches


def job(number: int, *parents: str) -> Prepared:
    return Prepared(f"j{number}", "+0", 5, b"{}", parents=parents)


def jobs(number: int) -> list[Prepared]:
    return [job(i) for i in range(number)]


def given(found: Batches) -> tuple[list[int], Exception | None]:
    """How many jobs each batch has, and what was raised in the end."""
    sizes = []
    try:
        for batch in found:
            sizes.append(len(batch))
    except Exception as error:
        return sizes, error
    return sizes, None


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_is_one_batch(kind: Any) -> None:
    many = kind(jobs(3 * BATCH))
    assert [*Batches(many, None)] == [many]


def test_an_iterator_comes_in_batches() -> None:
    many = jobs(2 * BATCH + 7)
    found = [*Batches(iter(many), None)]
    assert [len(batch) for batch in found] == [BATCH, BATCH, 7]
    assert [one for batch in found for one in batch] == many


def test_no_more_is_drawn_than_the_next_batch() -> None:
    drawn = count()
    found = Batches((job(next(drawn)) for _ in count()), None)
    next(found)
    assert next(drawn) == BATCH
    found.look_ahead()
    found.look_ahead()
    assert next(drawn) == 2 * BATCH + 1


@pytest.mark.parametrize("nothing", [[], (), iter(())])
def test_nothing_is_no_batch(nothing: Any) -> None:
    assert given(Batches(nothing, None)) == ([], None)


@pytest.mark.parametrize("before", [0, 7, BATCH, BATCH + 7])
def test_what_an_iterator_gave_before_it_raised_comes_first(before: int) -> None:
    def giving() -> Iterator[Prepared]:
        yield from jobs(before)
        raise LookupError("no more")

    sizes, error = given(Batches(giving(), None))
    assert sum(sizes) == before
    assert isinstance(error, LookupError)


def test_looking_ahead_raises_nothing() -> None:
    def giving() -> Iterator[Prepared]:
        yield job(0)
        raise LookupError("no more")

    found = Batches(giving(), None)
    found.look_ahead()
    assert next(found) == [job(0)]
    for _ in range(2):
        found.look_ahead()
        with pytest.raises(LookupError):
            next(found)


def test_what_comes_before_something_else_is_given() -> None:
    sizes, error = given(Batches(iter([job(0), job(1), None, job(2)]), None))
    assert sizes == [2]
    assert isinstance(error, UsageError)
    assert "not None" in str(error)


def test_a_slow_iterators_jobs_do_not_wait_for_a_whole_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(batches, "LONGEST_WAIT", -1)
    assert given(Batches(iter(jobs(3)), None)) == ([1, 1, 1], None)


@pytest.mark.parametrize("kind", [list, iter])
def test_a_durability_is_that_of_all(kind: Any) -> None:
    (batch,) = Batches(kind(jobs(2)), "replica")
    assert [one.durability for one in batch] == ["replica", "replica"]


def test_a_durability_that_there_is_not_is_refused_before_anything_is_drawn() -> None:
    untouched = iter(jobs(1))
    with pytest.raises(UsageError, match="durability must be"):
        Batches(untouched, "disk")  # type: ignore[arg-type]
    assert next(untouched) == job(0)


@pytest.mark.parametrize("kind", [list, iter])
def test_what_is_waited_for_stands_before(kind: Any) -> None:
    with pytest.raises(UsageError, match="does not stand before it"):
        next(Batches(kind([job(0, "j1"), job(1)]), None))


def test_an_error_tells_how_many_were_added_before_it() -> None:
    found = Batches([], None)
    with pytest.raises(LookupError) as nothing_before, found.telling([]):
        raise LookupError
    assert not hasattr(nothing_before.value, "__notes__")
    with pytest.raises(LookupError) as some_before, found.telling(["a"] * 1200):
        raise LookupError
    assert some_before.value.__notes__ == ["The 1,200 jobs that were given before are added."]
