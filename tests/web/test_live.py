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
from bide.loops import Recent
from tests.web.serving import Page


@contextmanager
def told(page: Page) -> Iterator[Iterator[float]]:
    """Since when each change is that a page is told of."""
    with closing(http.client.HTTPConnection("127.0.0.1", page.port, timeout=30)) as connection:
        connection.request("GET", f"{page.root}/api/live")
        lines = connection.getresponse()

        def changes() -> Iterator[float]:
            while line := lines.readline():
                if line.startswith(b"event: change"):
                    yield float(lines.readline().removeprefix(b"data: "))

        yield changes()


def shown(page: Page, since: float | str | None) -> int:
    """The delayed jobs that a page shows."""
    headers = {} if since is None else {"x-bide-since": str(since)}
    (count,) = re.findall(
        r'class="delayed".*?<b>(\d+)</b>', page.get("/queue?q=mail", headers).text, re.DOTALL
    )
    return int(count)


def test_pages_that_refresh_themselves_share_what_one_has_read(
    page: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.web.site.RECENT", 600)
    mail.enqueue("shop:remind", delay=60)
    with told(page) as changes:
        before = next(changes)
        assert shown(page, before) == 1
        mail.enqueue("shop:remind", delay=60)
        assert shown(page, before) == 1, "what another has read since"
        assert shown(page, None) == 2, "who opens a page sees what there is"
        after = next(changes)
    assert before < after < time.monotonic()
    assert shown(page, after) == 2, "what was read before that change will not do"
    mail.enqueue("shop:remind", delay=60)
    assert shown(page, after) == 2
    assert shown(page, "soon") == 2
    other = page.get("/queues", {"x-bide-since": str(after)}).text
    assert re.search(r"\b3\b", re.sub(r"<[^>]*>", " ", other)), "another page is another read"


def test_what_is_shared_is_not_old(
    page: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.web.site.RECENT", 0)
    for count in (1, 2):
        mail.enqueue("shop:remind", delay=60)
        assert shown(page, 0) == count


def test_a_dear_page_says_that_it_is_to_be_read_less_often(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rest, least in ((0, "0.9"), (1e9, "60.0")):
        monkeypatch.setattr("bide.web.pages._REST", rest)
        assert f'data-least="{least}"' in page.get("/jobs").text


def test_who_asks_for_the_head_of_a_stream_is_not_kept_waiting(page: Page) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", page.port, timeout=30)) as connection:
        connection.request("HEAD", "/api/live")
        head = connection.getresponse()
        assert head.getheader("content-type", "").startswith("text/event-stream")
        head.read()
        connection.request("GET", "/jobs")
        assert connection.getresponse().status == 200


HOST = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from bide.web import app

page = app(url=sys.argv[1], local_role="viewer")
uvicorn.run(Starlette(routes=[Mount("/jobs", page)]), port=0, log_level="info")
"""


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
            rest, _ = process.communicate(timeout=20)
        assert "Traceback" not in rest
        assert "exceeded" not in rest, "that it was waited for in vain"
    finally:
        process.kill()
        process.communicate()


ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")


def test_who_gives_up_waiting_stops_no_read_and_another_waits_for_it() -> None:
    async def main() -> None:
        recent, may_end, began = Recent[int](0), asyncio.Event(), 0

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
