"""What live pages cost: they are told of changes, and read once for all who look at the same."""

from __future__ import annotations

import asyncio
import http.client
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from bide import Queue
from bide.client.coalesce import ReadThroughCache
from tests.support.eventually import PATIENCE
from tests.support.serving import Page


@contextmanager
def told(page: Page) -> Iterator[Iterator[float]]:
    """Since when each change is that a page is told of."""
    with closing(
        http.client.HTTPConnection("127.0.0.1", page.port, timeout=PATIENCE)
    ) as connection:
        connection.request("GET", f"{page.root}/api/live")
        lines = connection.getresponse()

        def changes() -> Iterator[float]:
            while line := lines.readline():
                if line.startswith(b"event: change"):
                    yield float(lines.readline().removeprefix(b"data: "))

        yield changes()


def shown(page: Page, refreshes: bool = True) -> tuple[int, float, float]:
    """The delayed jobs that a page shows, when they were read, and when it may be read again."""
    text = page.get("/queue?q=mail", {"x-bide-refresh": "1"} if refreshes else {}).text
    (count,) = re.findall(r'class="delayed".*?<b>(\d+)</b>', text, re.DOTALL)
    ((least, seen),) = re.findall(r'data-least="([\d.]+)" data-seen="([\d.]+)"', text)
    return int(count), float(seen), float(least)


def test_pages_that_refresh_themselves_share_what_one_has_read(
    page: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.web.pages._REST", 1e9)
    mail.enqueue("shop:remind", delay=60)
    with told(page) as changes:
        before = next(changes)
        count, seen, least = shown(page)
        assert count == 1
        assert before <= seen
        assert 50 < least <= 60, "who shares it may read it again when the one who read it may"
        mail.enqueue("shop:remind", delay=60)
        assert shown(page)[:2] == (1, seen), "what another has read"
        assert shown(page, refreshes=False)[0] == 2, "who opens a page sees what there is"
        assert seen < next(changes) <= time.time(), "and the first learns that its own is older"
    other = page.get("/queues", {"x-bide-refresh": "1"}).text
    assert re.search(r"\b2\b", re.sub(r"<[^>]*>", " ", other)), "another page is another read"


def test_what_is_shared_is_not_old(
    page: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.web.pages._REST", 0)
    for count in (1, 2):
        mail.enqueue("shop:remind", delay=60)
        assert shown(page)[0] == count


def test_a_dear_page_says_that_it_is_to_be_read_less_often(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rest, least in ((0, "0.9"), (1e9, "60.0")):
        monkeypatch.setattr("bide.web.pages._REST", rest)
        assert f'data-least="{least}"' in page.get("/jobs").text


def test_who_asks_for_the_head_of_a_stream_is_not_kept_waiting(page: Page) -> None:
    with closing(
        http.client.HTTPConnection("127.0.0.1", page.port, timeout=PATIENCE)
    ) as connection:
        connection.request("HEAD", "/api/live")
        head = connection.getresponse()
        assert head.getheader("content-type", "").startswith("text/event-stream")
        head.read()
        connection.request("GET", "/jobs")
        assert connection.getresponse().status == 200


class Stream:
    """What a browser of some address is told."""

    def __init__(self, page: Page, address: str) -> None:
        self._connection = http.client.HTTPConnection(
            "127.0.0.1", page.port, timeout=PATIENCE, source_address=(address, 0)
        )
        self._connection.request("GET", "/api/live")
        self._lines = self._connection.getresponse()
        assert self._lines.status == 200
        self.told = b""
        while b"event: change" not in self.told:
            self.told += self._line()

    def _line(self) -> bytes:
        line = self._lines.readline()
        assert line, self.told
        return line

    def goes_on(self, mail: Queue) -> bool:
        """Whether it is told of changes still; one that ends may be told of one more."""
        for _ in range(2):
            mail.enqueue("shop:remind", delay=60)
            while not (line := self._line()).startswith(b"event: change"):
                if line == b"retry: 60000\n":  # it made room, and comes back after a while
                    assert self._lines.read() == b"\n"
                    return False
        return True

    def close(self) -> None:
        self._lines.close()
        self._connection.close()


@pytest.mark.slow
def test_one_client_leaves_room_for_others_and_whoever_comes_has_a_stream(
    page: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.web.application.STREAMS", 3)
    monkeypatch.setattr("bide.web.application.STREAMS_OF_ONE", 2)
    mail.enqueue("shop:remind", delay=60)
    owner, other = "127.0.0.1", "127.0.0.2"
    streams = [Stream(page, other) for _ in range(3)]
    assert [each.goes_on(mail) for each in streams] == [False, True, True]
    streams.append(Stream(page, owner))
    assert [each.goes_on(mail) for each in streams[1:]] == [True, True, True]
    streams.append(Stream(page, owner))
    assert [each.goes_on(mail) for each in streams[1:]] == [False, True, True, True]
    for each in streams:
        each.close()


HOST = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from bide.web import app

page = app(url=sys.argv[1], local_role="viewer")
uvicorn.run(Starlette(routes=[Mount("/jobs", page)]), port=0, log_level="info")
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("root", ["", "/jobs"])
def test_streams_do_not_keep_a_server_that_is_told_to_stop(
    root: str, number: int, one_url: str
) -> None:
    web = ["-m", "bide", "web", "--listen", "0", "-u", one_url]
    process = subprocess.Popen(
        [sys.executable, *(["-c", HOST, one_url] if root else web)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        port = next(int(at[1]) for line in process.stdout if (at := ADDRESS.search(line)))
        with told(Page(port, root)) as changes, told(Page(port, root)) as others:
            assert next(changes)
            assert next(others)
            process.send_signal(number)
            rest, _ = process.communicate(timeout=PATIENCE)
        assert "Traceback" not in rest
        assert "exceeded" not in rest, "that it was waited for in vain"
    finally:
        process.kill()
        process.communicate()


ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")


def test_what_took_long_is_shared_for_long_and_a_failure_is_not() -> None:
    async def main() -> None:
        recent, began = ReadThroughCache[int](0, lambda took: 60.0), 0

        async def read() -> int:
            nonlocal began
            began += 1
            if began == 1:
                raise ValueError("the first")
            return began

        with pytest.raises(ValueError, match="first"):
            await recent.read("", read)
        assert [await recent.read("", read) for _ in range(3)] == [2, 2, 2]
        assert await recent.read("other", read) == 3

    asyncio.run(main())


def test_who_gives_up_waiting_stops_no_read_and_another_waits_for_it() -> None:
    async def main() -> None:
        recent, may_end, began = ReadThroughCache[int](0), asyncio.Event(), 0

        async def read() -> int:
            nonlocal began
            began += 1
            await may_end.wait()
            return began

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await recent.read("", read)
        waiting = [asyncio.create_task(recent.read("", read)) for _ in range(3)]
        await asyncio.sleep(0)
        may_end.set()
        assert await asyncio.gather(*waiting) == [1, 1, 1]
        assert await recent.read("", read) == 2, "it is not recent any more"

    asyncio.run(main())
