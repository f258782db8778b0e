"""What an iterator gives is added in batches, by both facades."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pytest
import redis

from bide import (
    AsyncQueue,
    DuplicateJob,
    Middleware,
    Queue,
    ServerRefused,
    Unique,
    UsageError,
    add_middleware,
)
from bide.client import blocking
from bide.client.blocking import Connections
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.keys import keys_of
from bide.queue import batches
from bide.queue.batches import BATCH
from bide.testing.bed import isolated_registry
from tests.support import jobs


@pytest.fixture(autouse=True)
def _time_is_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is, no iterator here is slow but where a test says so."""
    monkeypatch.setattr(batches, "QUICK", 3600)
    monkeypatch.setattr(batches, "LONGEST_WAIT", 3600)


@pytest.fixture(params=["blocking", "awaited"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def add(kind: str, url: str, given: Iterator[Any]) -> list[Any]:
    """Enqueue what an iterator gives; the jobs that came of it."""

    async def awaited() -> list[Any]:
        queue = AsyncQueue("work", url=url)
        try:
            return list(await queue.enqueue_many(given))
        finally:
            await queue.close()

    if kind == "awaited":
        return asyncio.run(awaited())
    with closing(Queue("work", url=url)) as queue:
        return list(queue.enqueue_many(given))


def prepared(queue: Queue, number: int) -> Iterator[Prepared]:
    return (queue.prepare(jobs.add, (i,)) for i in range(number))


def waiting(queue: Queue) -> list[int]:
    """The arguments of those that wait, in the order in which they will run."""
    return [job.args[0] for job in queue.jobs("waiting", count=1000)]


def test_all_that_an_iterator_gives_is_added_in_order(kind: str, url: str, queue: Queue) -> None:
    number = 2 * BATCH + 50
    added = add(kind, url, prepared(queue, number))
    assert waiting(queue) == list(range(number))
    assert [job.id for job in queue.jobs("waiting", count=number)] == [job.id for job in added]


def test_what_it_gave_before_it_raised_is_added(kind: str, url: str, queue: Queue) -> None:
    def giving() -> Iterator[Any]:
        yield from prepared(queue, BATCH + 20)
        raise LookupError("the table ends here")

    with pytest.raises(LookupError, match="ends here") as caught:
        add(kind, url, giving())
    assert waiting(queue) == list(range(BATCH + 20))
    assert caught.value.__notes__ == ["Added before, of what the iterator gave: 120."]


def test_where_one_is_not_unique_all_others_are_added(kind: str, url: str, queue: Queue) -> None:
    def giving() -> Iterator[Prepared]:
        for i in range(BATCH + 20):
            only = Unique(key="one", on_conflict="reject") if i in (3, 7) else None
            yield queue.prepare(jobs.add, (i,), unique=only)

    with pytest.raises(DuplicateJob):
        add(kind, url, giving())
    assert sorted(waiting(queue)) == [i for i in range(BATCH + 20) if i != 7]


def test_what_was_drawn_and_not_added_is_told_and_can_be_enqueued_again(
    raw: redis.Redis, queue: Queue
) -> None:
    def giving() -> Iterator[Prepared]:
        for i, job in enumerate(prepared(queue, 4 * BATCH)):
            if i == BATCH:  # the first batch is under way
                raw.rename(keys, aside)
                raw.set(keys, "of another type")
            yield job

    keys, aside = queue.keys["jobs"], queue.keys["jobs"] + ":aside"
    given = giving()
    queue.enqueue(jobs.add, -1)
    with pytest.raises(ServerRefused) as caught:
        queue.enqueue_many(given)
    raw.rename(aside, keys)
    queue.enqueue_many([*caught.value.left, *given])
    assert waiting(queue) == list(range(-1, 4 * BATCH))


def test_an_iterator_that_raises_is_told_of_also_if_the_server_refuses_meanwhile(
    raw: redis.Redis, queue: Queue
) -> None:
    """A program that continued with it, as after an error of the server, would lose the rest."""

    def giving() -> Iterator[Prepared]:
        yield from prepared(queue, BATCH)
        raw.rename(keys, aside)
        raw.set(keys, "of another type")
        yield queue.prepare(jobs.add, (BATCH,))
        raise LookupError("the table ends here")

    keys, aside = queue.keys["jobs"], queue.keys["jobs"] + ":aside"
    queue.enqueue(jobs.add, -1)
    with pytest.raises(LookupError, match="ends here") as caught:
        queue.enqueue_many(giving())
    raw.rename(aside, keys)
    refused = caught.value.__cause__
    assert isinstance(refused, ServerRefused)
    queue.enqueue_many(refused.left)
    assert waiting(queue) == list(range(-1, BATCH + 1))


def test_what_cannot_be_enqueued_ends_it_there(kind: str, url: str, queue: Queue) -> None:
    with pytest.raises(UsageError, match="not 'x'"):
        add(kind, url, iter([*prepared(queue, 3), "x", *prepared(queue, 1)]))
    assert waiting(queue) == [0, 1, 2]


def test_the_next_batch_is_prepared_while_the_server_adds_one(url: str, queue: Queue) -> None:
    told: list[str] = []

    class Told(Middleware):
        @contextmanager
        def sending(self, queue: str, jobs: Any) -> Iterator[None]:
            told.append("sends")
            yield
            told.append("has sent")

    def giving() -> Iterator[Prepared]:
        for i, job in enumerate(prepared(queue, 2 * BATCH + 1)):
            if i % BATCH == 0:
                told.append(f"draws {i}")
            yield job

    queue.enqueue(jobs.add, 0)  # so that it has been answered before
    with isolated_registry():
        add_middleware(Told())
        queue.enqueue_many(giving())
    assert told == [
        *("draws 0", "sends", "draws 100", "has sent"),
        *("sends", "draws 200", "has sent", "sends", "has sent"),
    ]


def test_an_iterator_may_use_the_queue_itself(url: str, queue: Queue) -> None:
    def giving() -> Iterator[Prepared]:
        for i in range(2 * BATCH):
            yield queue.prepare(jobs.add, (i, queue.counts().waiting))

    queue.enqueue_many(giving())
    assert waiting(queue) == list(range(2 * BATCH))


def test_what_was_begun_is_under_way_before_its_end_is_asked_for(url: str) -> None:
    with closing(blocking.Client(url)) as client, redis.Redis.from_url(url) as other:
        keys = keys_of("work")
        client.run(job_commands.counts(keys))  # so that the server knows the script
        begun = client.begin([job_commands.counts(keys)])
        assert begun
        other.ping()  # the server comes to what it is sent in turn
        other.zadd(keys["completed"], {"a": 1})
        (counts,) = begun.end()
        assert counts.completed == 0
        begun.drop()  # it has ended
        assert client.run(job_commands.counts(keys)).completed == 1


@pytest.fixture
def trips(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Queue, list[str]]]:
    """A queue that is known to the server, and what it sends and reads from then on."""
    told: list[str] = []

    class Told(Connections):
        def exchange(self, calls: Any, behind: Any = None, *, pauses: bool = False) -> Any:
            told.append("sends")
            exchange = super().exchange(calls, behind, pauses=pauses)
            if pauses:
                yield next(exchange)
            told.append("reads")
            yield from exchange

    monkeypatch.setattr(blocking, "Connections", Told)
    with closing(Queue("work", url=queue.url)) as another:
        another.enqueue(jobs.add, 0)
        told.clear()
        yield another, told


def test_two_batches_are_under_way_at_a_time(trips: tuple[Queue, list[str]]) -> None:
    queue, told = trips
    queue.enqueue_many(prepared(queue, 3 * BATCH + 2))
    assert told == ["sends", *["sends", "reads"] * 3, "reads"]


def test_two_batches_go_over_one_connection(trips: tuple[Queue, list[str]]) -> None:
    queue, _ = trips
    queue.enqueue_many(prepared(queue, 3 * BATCH))
    (connections,) = queue._client._connections.values()
    assert len(connections._idle) == 1


@pytest.mark.parametrize(
    "options", [{"group": "g"}, {"unique": Unique(key="k")}, {"depends_on": "a"}]
)
def test_one_that_hangs_on_others_is_sent_behind_the_answer_to_them(
    trips: tuple[Queue, list[str]], options: Any
) -> None:
    queue, told = trips
    queue.enqueue(jobs.add, 0, job_id="a", delay=60)
    queue.enqueue(jobs.add, 0, delay=60, **options)  # so that the server knows the script
    told.clear()

    def giving() -> Iterator[Prepared]:
        yield from prepared(queue, 2 * BATCH - 1)
        yield queue.prepare(jobs.add, (1,), **options)

    queue.enqueue_many(giving())
    assert told == ["sends", "reads"] * 2


def test_so_are_those_that_all_hang_on_others(trips: tuple[Queue, list[str]]) -> None:
    queue, told = trips
    queue.enqueue(jobs.add, 0, group="g")  # so that the server knows the script
    told.clear()
    queue.enqueue_many(queue.prepare(jobs.add, (i,), group="g") for i in range(2 * BATCH))
    assert told == ["sends", "reads"] * 2


def test_with_a_middleware_one_sending_has_ended_before_the_next_begins(
    trips: tuple[Queue, list[str]],
) -> None:
    queue, told = trips
    with isolated_registry():
        add_middleware(Middleware())
        queue.enqueue_many(prepared(queue, 2 * BATCH))
    assert told == ["sends", "reads"] * 2


@pytest.mark.parametrize("number", [0, BATCH, 2 * BATCH])
def test_whoever_is_interrupted_leaves_no_reply_to_others(
    trips: tuple[Queue, list[str]], number: int
) -> None:
    queue, _ = trips

    def giving() -> Iterator[Prepared]:
        yield from prepared(queue, number)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        queue.enqueue_many(giving())
    assert caught.value.__traceback__, "which keeps what was under way"
    assert queue.counts().waiting >= 1
    (client,) = queue._client._connections.values()
    assert not client._busy


def test_what_does_not_go_in_one_round_trip_is_not_overtaken(url: str, queue: Queue) -> None:
    large = "x" * 40_000
    queue.enqueue(jobs.add, -1)
    queue.enqueue_many(queue.prepare(jobs.add, (i, large)) for i in range(3 * BATCH))
    assert waiting(queue) == list(range(-1, 3 * BATCH))


@pytest.mark.parametrize("at", [0, BATCH, 2 * BATCH])
def test_what_has_to_be_sent_again_is_not_overtaken(
    raw: redis.Redis, queue: Queue, at: int
) -> None:
    def giving() -> Iterator[Prepared]:
        for i, job in enumerate(prepared(queue, 6 * BATCH)):
            if i == at:
                raw.script_flush()
            yield job

    queue.enqueue(jobs.add, -1)
    queue.enqueue_many(giving())
    assert waiting(queue) == list(range(-1, 6 * BATCH))


def test_a_connection_that_breaks_once_is_trouble_once(
    raw: redis.Redis, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    def giving() -> Iterator[Prepared]:
        for i, job in enumerate(prepared(queue, 20 * BATCH)):
            if i == 2 * BATCH:
                raw.client_kill_filter(_type="normal", skipme=True)
            yield job

    queue.enqueue(jobs.add, -1)
    monkeypatch.setattr(time, "sleep", pauses.append)
    assert len(queue.enqueue_many(giving())) == 20 * BATCH
    assert len(pauses) <= 2, "of each of two that were under way"


def test_connections_that_break_under_two_batches_lose_none_of_them(
    raw: redis.Redis, queue: Queue
) -> None:
    def giving() -> Iterator[Prepared]:
        for i, job in enumerate(prepared(queue, 5 * BATCH)):
            if i % BATCH == BATCH - 1:
                raw.client_kill_filter(_type="normal", skipme=True)
            yield job

    queue.enqueue(jobs.add, -1)
    added = queue.enqueue_many(giving())
    assert len(added) == 5 * BATCH
    assert waiting(queue) == list(range(-1, 5 * BATCH))
