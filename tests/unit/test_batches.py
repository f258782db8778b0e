"""What is given to `enqueue_many`, in batches."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextvars import ContextVar
from itertools import count
from typing import Any

import pytest

from bide.errors import DuplicateJob, ServerFull, UsageError
from bide.protocol.commands.enqueue import Prepared
from bide.queue import batches
from bide.queue.batches import BATCH, Batches


@pytest.fixture(autouse=True)
def _time_is_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, no iterator here is slow but where a test says so."""
    monkeypatch.setattr(batches, "QUICK", 3600)
    monkeypatch.setattr(batches, "LONGEST_WAIT", 3600)


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
    found.look_ahead()
    with pytest.raises(LookupError):
        next(found)
    assert given(found) == ([], None)


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


def test_what_is_waited_for_stands_before() -> None:
    with pytest.raises(UsageError, match="does not come before it"):
        Batches([job(0, "j1"), job(1)], None)


def test_an_error_tells_how_many_were_added_before_it_and_what_is_left() -> None:
    found = Batches(iter(jobs(2 * BATCH + 5)), None)
    with found.sending(next(found)):
        found.look_ahead()
    batch = next(found)
    found.look_ahead()
    with pytest.raises(ServerFull) as full, found.sending(batch):
        raise ServerFull("It is full.")
    assert full.value.__notes__ == ["Added before, of what the iterator gave: 100."]
    assert [*full.value.left] == jobs(2 * BATCH + 5)[BATCH:]


def test_of_a_list_nothing_is_left_but_what_the_caller_has() -> None:
    found = Batches(jobs(3), None)
    with pytest.raises(ServerFull) as full, found.sending(next(found)):
        raise ServerFull("It is full.")
    assert full.value.left == ()
    assert not hasattr(full.value, "__notes__")


def test_who_was_rejected_is_told_of_when_all_others_are_in() -> None:
    found = Batches(iter(jobs(2 * BATCH)), None)
    for why, batch in zip(("first", "second"), found, strict=False):
        with found.sending(batch):
            raise DuplicateJob(why)
    with pytest.raises(DuplicateJob, match="first"):
        next(found)


def test_an_iterator_that_raised_while_a_batch_failed_is_told_of_first() -> None:
    """It gives nothing more: whoever caught the batch's error would go on as if it had ended."""
    own = LookupError("the table ends here")

    def giving() -> Iterator[Prepared]:
        yield from jobs(2 * BATCH + 5)
        raise own

    found = Batches(giving(), None)
    with found.sending(next(found)):
        raise DuplicateJob("one")
    batch = next(found)
    found.look_ahead()
    full = ServerFull("It is full.")
    with pytest.raises(LookupError) as caught, found.sending(batch):
        raise full
    assert caught.value is own
    assert own.__notes__ == ["Added before, of what the iterator gave: 100."]
    assert own.__cause__ is full
    assert [*full.left] == jobs(2 * BATCH + 5)[BATCH:]
    assert isinstance(full.__cause__, DuplicateJob)


def test_a_rejection_is_the_cause_of_the_error_that_comes_later() -> None:
    def giving() -> Iterator[Prepared]:
        yield from jobs(BATCH)
        raise LookupError("the table ends here")

    for given in (giving(), iter(jobs(2 * BATCH))):
        found = Batches(given, None)
        with found.sending(next(found)):
            raise DuplicateJob("one")
        with pytest.raises((LookupError, ServerFull)) as caught, found.sending(next(found)):
            raise ServerFull("It is full.")
        assert isinstance(caught.value.__cause__, DuplicateJob)


def test_an_error_that_is_false_is_an_error() -> None:
    class Empty(Exception):
        def __len__(self) -> int:
            return 0

    def giving() -> Iterator[Prepared]:
        yield job(0)
        raise Empty

    sizes, error = given(Batches(giving(), None))
    assert (sizes, type(error)) == ([1], Empty)


def test_what_is_slow_is_not_drawn_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for the server would wait for that, and not see what it answers."""
    monkeypatch.setattr(batches, "QUICK", 0)
    drawn = count()
    found = Batches((job(next(drawn)) for _ in count()), None)
    next(found)
    found.look_ahead()
    assert next(drawn) == BATCH


@pytest.mark.parametrize("kind", [deque, lambda many: dict.fromkeys(many).keys(), set])
def test_any_collection_is_looked_through_at_once(kind: Any) -> None:
    (batch,) = Batches(kind(jobs(2 * BATCH)), None)
    assert sorted(batch) == sorted(jobs(2 * BATCH))
    with pytest.raises(UsageError, match="not None"):
        Batches(deque([job(0), None]), None)


def test_an_iterator_runs_in_the_context_in_which_it_was_given() -> None:
    """Not in that of the batch that is being sent while it runs, as a trace's span is."""
    span: ContextVar[str] = ContextVar("span", default="none")
    seen = []

    def giving() -> Iterator[Prepared]:
        for one in jobs(2 * BATCH):
            seen.append(span.get())
            yield one

    span.set("the caller's")
    found = Batches(giving(), None)
    next(found)
    span.set("the batch's")
    found.look_ahead()
    assert len(seen) == 2 * BATCH
    assert set(seen) == {"the caller's"}
