"""Who listens to events hears each once, whatever breaks; or is told that some are missing."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

from bide import AsyncQueue, Event, Queue
from bide.embedded import Server
from bide.model.job import Claimed, read_event
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.worker import JobNote, Settle
from bide.protocol.keys import keys_of
from tests.chaos.test_lost_replies import KEYS, Line, jobs, line, take
from tests.chaos.verbs import empty_all, enqueue_all
from tests.support.eventually import PATIENCE
from tests.support.proxy import Proxy

__all__ = ["line"]

READER = """
import json, sys
from bide import Queue
queue = Queue("mail", url=sys.argv[1])
with queue.events(name="reader", after=sys.argv[2]) as events:
    for event in events:
        print(json.dumps([event.id, event.job_id]), flush=True)
"""


class Follower:
    """Either kind of iterator, called from a test that blocks."""

    def __init__(self, kind: str, url: str, **options: Any) -> None:
        self._portal: Any = None
        if kind == "sync":
            self.queue: Any = Queue("mail", url=url)
            self.events: Any = self.queue.events(**options)
            self._call: Callable[..., Any] = lambda f, *a: f(*a)
            self._names = ("__enter__", "__exit__", "__next__")
        else:
            self._exit = start_blocking_portal("asyncio")
            self._portal = self._exit.__enter__()
            self.queue = AsyncQueue("mail", url=url)
            self.events = self.queue.events(**options)
            self._call = self._portal.call
            self._names = ("__aenter__", "__aexit__", "__anext__")
        self._call(getattr(self.events, self._names[0]))

    def next(self) -> Event:
        event: Event = self._call(getattr(self.events, self._names[2]))
        return event

    def ids(self, count: int) -> list[str | None]:
        """The jobs of the next events."""
        return [self.next().job_id for _ in range(count)]

    def close(self) -> None:
        self._call(getattr(self.events, self._names[1]), None, None, None)
        self._call(self.queue.close)
        if self._portal is not None:
            self._exit.__exit__(None, None, None)


@pytest.fixture(params=["sync", "aio"])
def follow(request: pytest.FixtureRequest) -> Iterator[Callable[..., Follower]]:
    followers: list[Follower] = []

    def start(url: str, **options: Any) -> Follower:
        followers.append(Follower(request.param, url, **options))
        return followers[-1]

    yield start
    for follower in followers:
        follower.close()


def produce(queue: Queue, count: int = 3) -> list[str | None]:
    return [queue.enqueue("app:task", n, delay=3600).id for n in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize("lose", ["lose_reply", "lose_request"])
def test_on_a_bad_line_each_event_is_read_once(
    lose: str, proxy: Proxy, one_url: str, follow: Callable[..., Follower]
) -> None:
    """Whichever reply or request is lost, of connecting, of reading, of holding the stream open."""
    direct = Queue("mail", url=one_url)
    follower = follow(proxy.url)
    n, lost = 0, True
    while lost:
        n += 1
        proxy.cut()
        getattr(proxy, lose)(n)
        ids = produce(direct)
        assert follower.ids(3) == ids
        lost = proxy.lost > 0
        proxy.behave()
    assert n > 3
    direct.close()


@pytest.mark.slow
def test_a_listener_whose_connection_is_cut_again_and_again(
    proxy: Proxy, one_url: str, follow: Callable[..., Follower]
) -> None:
    direct = Queue("mail", url=one_url)
    follower = follow(proxy.url)
    for _ in range(5):
        ids = produce(direct)
        proxy.cut()
        assert follower.ids(3) == ids
    direct.close()


def test_a_server_that_keeps_its_data_is_restarted(
    tmp_server: Callable[..., Server], follow: Callable[..., Follower]
) -> None:
    server = tmp_server(persist=True)
    queue = Queue("mail", url=server.url)
    follower = follow(server.url, timeout=PATIENCE)
    before = produce(queue)
    assert follower.ids(1) == before[:1]
    server.kill()
    server.restart()
    after = produce(queue)
    assert follower.ids(5) == [*before[1:], *after]
    queue.close()


def test_a_server_that_forgets_everything_leaves_a_gap(
    tmp_server: Callable[..., Server], follow: Callable[..., Follower]
) -> None:
    server = tmp_server()
    queue = Queue("mail", url=server.url)
    follower = follow(server.url, timeout=PATIENCE)
    before = produce(queue)
    assert follower.ids(3) == before
    server.kill()
    server.restart()
    assert follower.next().kind == "gap"
    after = produce(queue)
    assert follower.ids(3) == after
    queue.close()


@pytest.mark.slow
def test_a_listener_that_was_killed_goes_on_where_it_was(one_url: str) -> None:
    queue = Queue("mail", url=one_url)
    with queue.events(name="reader") as events:
        after = events.after
    heard: list[str | None] = []
    ids: list[str | None] = []
    for _ in range(3):
        ids += produce(queue, 20)
        program = subprocess.Popen(
            [sys.executable, "-c", READER, one_url, after], stdout=subprocess.PIPE, text=True
        )
        assert program.stdout is not None
        for _ in range(13):
            after, job_id = json.loads(program.stdout.readline())
            heard.append(job_id)
        program.kill()
        program.communicate()
    with queue.events(name="reader", after=after, timeout=0) as events:
        heard += [event.job_id for event in events]
    assert heard == ids
    queue.close()


@pytest.mark.slow
def test_a_lost_reply_tells_nothing_twice(line: Line) -> None:
    """The executor repeats each verb until it has an answer."""
    for _ in line.each_round():
        line.good.run(job_commands.listen(KEYS, "audit", "-"))
        line.arm()
        prepared = jobs(6)
        ids = [receipt.id for receipt in enqueue_all(line.bad, KEYS, prepared)]
        held: list[Claimed] = take(line.bad, 4).jobs
        said = [JobNote(job.id, job.token, "P", b'[0.5,""]') for job in held]
        line.bad.run(worker_commands.add_notes(KEYS, said))
        settles = [
            Settle(held[0].id, held[0].token, "complete"),
            Settle(held[1].id, held[1].token, "retry", "+0"),
            Settle(held[2].id, held[2].token, "fail"),
            Settle(held[3].id, held[3].token, "snooze", "+0"),
        ]
        line.bad.run(worker_commands.settle(KEYS, settles))
        line.bad.run(job_commands.cancel(KEYS, ids[4:5]))
        line.bad.run(job_commands.retry(KEYS, ids[:1], "+60000000"))
        line.bad.run(job_commands.promote(KEYS, ids[:1]))
        line.bad.run(job_commands.delete(KEYS, ids[2:3]))
        assert empty_all(line.bad, KEYS) == 4
        entries: Any = line.direct.xrange(keys_of("mail")["events"])
        told = [read_event(id.decode(), fields[b"e"]) for id, fields in entries]
        assert [(event.kind, event.job_id) for event in told] == [
            *(("added", id) for id in ids),
            *(("active", id) for id in ids[:4]),
            *(("progress", id) for id in ids[:4]),
            ("completed", ids[0]),
            ("retried", ids[1]),
            ("failed", ids[2]),
            ("rescheduled", ids[3]),
            ("cancelled", ids[4]),
            ("retried", ids[0]),
            ("rescheduled", ids[0]),
            ("deleted", ids[2]),
            ("purged", None),
        ]


def test_a_callback_goes_on_when_the_server_is_back(
    tmp_server: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it was away for longer than a call is repeated."""
    server = tmp_server()
    queue = Queue("mail", url=server.url, retry_for=0)
    got: list[Event] = []
    told, gap, added = asyncio.Event(), asyncio.Event(), asyncio.Event()
    log = logging.getLogger("bide.model.events")
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: told.set())
    log.addHandler(handler)

    async def main() -> None:
        awaited = AsyncQueue("mail", url=server.url, retry_for=0)

        def callback(event: Event) -> None:
            got.append(event)
            (gap if event.kind == "gap" else added).set()

        await awaited.on(("gap", "added"), callback)
        await asyncio.to_thread(server.kill)
        await asyncio.wait_for(told.wait(), PATIENCE)
        await asyncio.to_thread(server.restart)
        await asyncio.wait_for(gap.wait(), PATIENCE)
        produce(queue, 1)
        await asyncio.wait_for(added.wait(), PATIENCE)
        await awaited.close()

    asyncio.run(main())
    log.removeHandler(handler)
    assert [event.kind for event in got] == ["gap", "added"]
    queue.close()
