"""With keys: what is not signed as it is and where it is runs nowhere, and stays as it was."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from bide import BadSignature, DelayQueue, Queue, State, UsageError, Worker
from bide.model.payload.signing import Keyring, Seal, is_signed
from bide.protocol.keys import keys_of
from bide.protocol.scripts import load
from tests.support import jobs
from tests.support import process_tasks as tasks

MODULES = ("tests.support.jobs",)
ONE, TWO = f"one:{'1' * 32}", f"two:{'2' * 32}"


@pytest.fixture
def work(one_url: str, signing: str) -> Iterator[Queue]:
    assert signing == ONE
    queue = Queue("work", url=one_url)
    yield queue
    queue.close()


def run(queue: Queue, **options: Any) -> int:
    return Worker(queue, modules=MODULES, **options).run(burst=True)


def put(direct: redis.Redis, queue: str, id: str, body: bytes) -> None:
    """As whoever can write to the server does."""
    script, keys = load("enqueue"), keys_of(queue)
    names = keys.of(script.keys)
    direct.eval(script.text, len(names), *names, id, "+0", 5, body)


def body_of(direct: redis.Redis, id: str, queue: str = "work") -> bytes:
    body: Any = direct.hget(keys_of(queue)["jobs"], id)
    return bytes(body)


def test_what_is_signed_runs(work: Queue, direct: redis.Redis) -> None:
    job = work.enqueue(jobs.add, 2, 3)
    assert is_signed(body_of(direct, job.id))
    assert run(work) == 1
    assert job.refresh().result == 5
    assert job.args == (2, 3)


def test_what_is_not_signed_fails_undecoded_and_keeps_its_bytes(
    work: Queue, direct: redis.Redis
) -> None:
    work.pause()
    good = work.enqueue(jobs.add, 1)
    body = body_of(direct, good.id)
    plain = body.partition(b"\n")[0]
    forged = {
        "unsigned": plain,
        "changed": body.replace(b"[1]", b"[9]"),
        "moved": body,
        "no-json": b"\x80{{{",
        "stranger": Seal(Keyring(TWO), work.keys).sign("job", "stranger", plain),
    }
    for id, data in forged.items():
        put(direct, "work", id, data)
    other = Queue("other", url=work.url)
    moved = other.enqueue(jobs.add, 2)
    put(direct, "work", moved.id, body_of(direct, moved.id, "other"))
    other.close()
    work.resume()
    run(work)
    assert jobs.seen == [("add", 1, 0)], "a neighbour is not held up"
    assert good.refresh().state is State.COMPLETED
    for id, data in [*forged.items(), (moved.id, body_of(direct, moved.id))]:
        seen = work.fetch(id)
        assert seen.state is State.FAILED
        assert seen.error is not None
        assert seen.error.type == "bide.BadSignature", seen.error
        assert "not one of bide's" not in seen.error.message, "nobody has tried to read it"
        assert body_of(direct, id) == data


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["process", "fork"])
def test_so_it_is_in_processes(
    work: Queue, direct: redis.Redis, executor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Also where the worker's program has hidden the keys from what it starts."""
    monkeypatch.setenv(tasks.NOTES, str(tmp_path / "notes"))
    good = work.enqueue(tasks.add, 1, 2)
    put(direct, "work", "forged", body_of(direct, good.id))
    worker = Worker(work, modules=[tasks.__name__], executor=executor, concurrency=1)
    monkeypatch.delenv("BIDE_SIGNING_KEYS")
    worker.run(burst=True)
    assert good.refresh().result == 3
    error = work.fetch("forged").error
    assert error is not None
    assert error.type == "bide.BadSignature"


def test_one_that_failed_for_want_of_a_key_runs_once_the_key_is_there(
    work: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the retry, which leaves body and id as they are, does not break the signature."""
    job = work.enqueue(jobs.add, 2, 3)
    monkeypatch.setenv("BIDE_SIGNING_KEYS", TWO)
    run(work)
    assert job.refresh().state is State.FAILED
    assert "the key 'one', which this process does not have" in str(job.error)
    monkeypatch.setenv("BIDE_SIGNING_KEYS", f"{TWO},{ONE}")
    job.retry()
    run(work)
    assert job.refresh().result == 5


def test_reschedule_promote_and_retries_keep_the_signature(work: Queue) -> None:
    job = work.enqueue_call(jobs.fail, ["no"], retry=1, delay=60)
    job.reschedule(delay=30)
    job.promote()
    run(work)
    assert job.refresh().error is not None
    assert job.error.type != "bide.BadSignature", job.error  # type: ignore[union-attr]


def test_a_change_over_takes_what_is_old_and_no_forgery(
    work: Queue, direct: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BIDE_SIGNING_KEYS")
    with_no_key = Queue("work", url=work.url)
    old = with_no_key.enqueue(jobs.add, 1)
    with_no_key.close()
    put(
        direct,
        "work",
        "forged",
        Seal(Keyring(ONE), work.keys).sign("job", "x", body_of(direct, old.id)),
    )
    monkeypatch.setenv("BIDE_SIGNING_KEYS", f"{ONE},unsigned")
    run(work)
    assert old.refresh().state is State.COMPLETED
    assert work.fetch("forged").state is State.FAILED


@pytest.mark.slow
def test_who_has_no_key_reads_and_runs_what_is_signed(
    work: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = work.enqueue(jobs.add, 2, 3)
    monkeypatch.delenv("BIDE_SIGNING_KEYS")
    assert run(work) == 1
    assert job.refresh().result == 5


# -- delay queues


@pytest.fixture
def pile(one_url: str, signing: str) -> Iterator[DelayQueue]:
    assert signing
    pile = DelayQueue("orders", url=one_url)
    yield pile
    pile.close()


@pytest.mark.parametrize("how", ["pop", "take"])
def test_data_that_are_not_signed_fail_and_stay_as_they_are(
    pile: DelayQueue, direct: redis.Redis, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pile.push({"user": 1}, id="a")
    body = body_of(direct, "a", "orders")
    put(direct, "orders", "b", body)
    put(direct, "orders", "c", b'\x03{"user":3}')
    events = pile.queue.events(kinds="failed", timeout=0.5)
    with events:
        if how == "pop":
            assert pile.pop(num=5) == [{"user": 1}]
            assert pile.pop(num=5) == []
        else:
            with pile.take(num=5) as items:
                assert [item.data for item in items] == [{"user": 1}]
                items.ack()
        told = {event.job_id: event.error for event in events}
    assert told.keys() == {"b", "c"}
    counts = pile.queue.counts()
    assert (counts.totals["completed"], counts.totals["failed"]) == (1, 2)
    for id, data in (("b", body), ("c", b'\x03{"user":3}')):
        seen = pile.queue.fetch(id)
        assert seen.state is State.FAILED
        assert seen.error is not None
        assert seen.error.type == "bide.BadSignature"
        assert body_of(direct, id, "orders") == data
    monkeypatch.delenv("BIDE_SIGNING_KEYS")
    assert pile.retry(["c"]) == ["ok"]
    assert pile.pop(num=5) == [{"user": 3}], "nothing is lost by it"


def test_a_refusal_that_is_repeated_changes_nothing(pile: DelayQueue, direct: redis.Redis) -> None:
    from bide.client import blocking
    from bide.protocol.commands import worker as worker_commands

    pile.push({"user": 1}, id="a")
    assert pile.pop() == [{"user": 1}]
    with_client = blocking.Client(pile.queue.url)
    reject = worker_commands.reject_items(
        pile.queue.keys, [("a", b'{"type":"x","message":""}'), ("?", b"")]
    )
    assert with_client.run(reject) == ["ok", "gone"]
    assert with_client.run(reject) == ["ok", "gone"]
    with_client.close()
    assert pile.queue.counts().totals["failed"] == 1
    assert len(pile.queue.fetch("a").attempts) == 1


# -- pickle


def test_pickle_without_a_key_is_refused_where_it_is_asked_for(
    one_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BIDE_SIGNING_KEYS", raising=False)
    queue = Queue("work", url=one_url, serializer="pickle")
    with pytest.raises(UsageError, match=r'serializer="pickle" needs a signing key'):
        queue.enqueue(jobs.add, 1)
    with pytest.raises(UsageError, match=r"Pickles are read only with a signing key"):
        Worker(queue)
    with pytest.raises(UsageError, match=r"Pickles are read only with a signing key"):
        Worker("work", allow_pickle=True)
    queue.close()


class Bomb:
    went_off = 0

    def __reduce__(self) -> Any:
        return _go_off, ()


def _go_off() -> int:
    Bomb.went_off += 1
    return 0


def test_no_pickle_is_read_that_was_not_signed(work: Queue, direct: redis.Redis) -> None:
    """Neither arguments nor results, in no process, not during a change-over either."""
    from bide.model.payload.body import Body, encode_body, encode_result

    pickling = Queue("work", url=work.url, serializer="pickle")
    put(
        direct,
        "work",
        "bomb",
        encode_body(Body("tests.support.jobs:add", (Bomb(),), codec="pickle")),
    )
    job = pickling.enqueue(jobs.add, 1)
    worker = Worker(pickling, modules=MODULES, allow_pickle=True)
    worker.run(burst=True)
    assert job.refresh().result == 1
    assert job.args == (1,)
    bomb = encode_result("t", Bomb(), "pickle")
    good: Any = direct.hget(work.keys["results"], job.id)
    for forged in (bomb, bomb + good[good.index(b"\n\x04") :]):
        direct.hset(work.keys["results"], job.id, forged)
        with pytest.raises(BadSignature):
            _ = pickling.fetch(job.id).result
    with pytest.raises(BadSignature):
        _ = pickling.fetch("bomb").args
    assert Bomb.went_off == 0
    pickling.close()


def test_a_change_over_reads_no_unsigned_pickle(
    work: Queue, direct: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bide.model.payload.body import Body, encode_body

    monkeypatch.setenv("BIDE_SIGNING_KEYS", f"{ONE},unsigned")
    put(
        direct,
        "work",
        "bomb",
        encode_body(Body("tests.support.jobs:add", (Bomb(),), codec="pickle")),
    )
    run(work, allow_pickle=True)
    assert "are pickled" in str(work.fetch("bomb").error)
    assert Bomb.went_off == 0


def test_prepared_jobs_are_signed_for_the_queue_that_gets_them(work: Queue) -> None:
    other = Queue("other", url=work.url)
    (job,) = work.enqueue_many([other.prepare(jobs.add, (2, 3))])
    run(work)
    assert job.refresh().result == 5
    other.close()
