"""Half requests: a client that sends no more than a part of one keeps nothing for long."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import pytest

from bide import Queue
from bide.web import application
from tests.support.eventually import PATIENCE
from tests.support.serving import Page

WHOLE = b"GET /queues HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

HALVES = {
    "nothing": b"",
    "a line": b"GET /queues HTT",
    "headers": b"GET /queues HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
    "a body": b"POST /do HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 20\r\n\r\nverb=",
    "a stream's": b"GET /api/live HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\n",
}


@contextmanager
def connected(page: Page, sent: bytes) -> Iterator[socket.socket]:
    with closing(socket.create_connection(("127.0.0.1", page.port), timeout=PATIENCE)) as line:
        line.sendall(sent)
        yield line


def told(line: socket.socket) -> bytes:
    """All that the server says until it closes the connection."""
    said = b""
    with suppress(ConnectionResetError):  # it was closed before what was sent had been read
        while piece := line.recv(65_536):
            said += piece
    return said


@pytest.mark.slow
@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES)
def test_a_half_request_is_given_up(
    half: bytes, page: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.web.application.PATIENCE", 0.2)
    with connected(page, half) as line:
        said = told(line)
    is_answered = half.startswith(b"GET /api/live")
    assert said.startswith(b"HTTP/1.1 200" if is_answered else b"HTTP/1.1 408")


def test_nor_is_the_half_of_a_second_waited_for(
    page: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.web.application.PATIENCE", 0.5)
    with connected(page, WHOLE.replace(b"GET", b"HEAD")) as line:
        said = b""
        while b"\r\n\r\n" not in said:
            said += line.recv(65_536)
        assert said.startswith(b"HTTP/1.1 200")
        line.sendall(b"GET /queues HTTP/1.1\r\nHo")
        assert not told(line)


def test_what_is_whole_is_not_given_up(
    page: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.web.application.PATIENCE", 0.5)
    with (
        connected(page, WHOLE.replace(b"/queues", b"/api/live")) as line,
        line.makefile("rb") as lines,
    ):
        for half in list(HALVES.values())[:2]:  # each takes as long as any may
            with connected(page, half) as other:
                told(other)
        mail.enqueue("shop:remind", delay=60)
        changes = (each for each in lines if each.startswith(b"event: change"))
        assert next(changes)
        assert next(changes)


def test_so_many_half_requests_are_kept_and_the_newest_of_them(
    page: Page, mail: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.web.application.PATIENCE", 60)
    monkeypatch.setattr("bide.web.application.MOST_WAITING", 2)
    half = HALVES["headers"]
    with (
        connected(page, half) as first,
        connected(page, half) as second,
        connected(page, half) as third,
    ):
        assert told(first) in (b"", application._TIMEOUT)
        assert page.get("/queues").status == 200, "which is whole, and took the second's place"
        assert told(second) in (b"", application._TIMEOUT)
        third.sendall(b"y\r\nConnection: close\r\n\r\n")
        assert told(third).startswith(b"HTTP/1.1 200")
