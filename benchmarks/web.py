"""What looking at the page costs with 10,000, a million and ten million delayed jobs in a queue.

Each size has a server of its own, one after another: a page is asked for over HTTP as a browser
asks, and the server's own account says how long its scripts took.
"""

from __future__ import annotations

import http.client
import socket
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import uvicorn

from benchmarks.depth import BEGIN_S, NAMED, SIZES, SPAN_S
from benchmarks.filling import check, fill
from benchmarks.lab import QUEUE, Lab
from benchmarks.report import Aim, Report, Rows
from benchmarks.stopwatch import Stopwatch
from bide.embedded import Server
from bide.web import app

TIMES = 20
"""Requests of each kind, after one that is not counted."""

MOST_MS = 10.0
"""Of a script."""


def pages(id: str, now: datetime) -> dict[str, str]:
    """What is asked for, by what it is called."""
    begin, end = now + timedelta(seconds=BEGIN_S), now + timedelta(seconds=BEGIN_S + SPAN_S)
    middle = begin + (end - begin) / 2
    minute = {"from": middle.isoformat(), "to": (middle + timedelta(minutes=1)).isoformat()}
    after = f"{middle.timestamp() * 1e6:.0f}.0 -"
    whole = {"from": begin.isoformat(), "to": end.isoformat(), "q": QUEUE, "after": after}
    return {
        "timeline of an hour": "/",
        "timeline of a month": "/?span=month",
        "range of a minute": f"/range?{urlencode(minute)}",
        "range of all, from the middle on": f"/range?{urlencode(whole)}",
        "jobs that are delayed": "/jobs?state=delayed",
        "search, 2,000 jobs looked at": "/jobs?text=no-such-argument",
        "lateness of an hour": "/lateness",
        "lateness of a week": f"/lateness?span=week&q={QUEUE}",
        "queue": f"/queue?q={QUEUE}",
        "job": f"/job?id={id}",
    }


def run(lab: Lab) -> list[Report]:
    """Size after size; never two large servers at once."""
    check(lab.server.binary)
    rows: Rows = {}
    aims: list[Aim] = []
    for size in SIZES[:2] if lab.quick else SIZES:
        with Server.start(binary=lab.server.binary) as server:
            fill(server, size, BEGIN_S * 1_000_000, SPAN_S * 1_000_000)
            watch = Stopwatch(server)
            typical = worst = 0.0
            with _serving(server.url) as port:
                for name, path in pages(f"{size // 2:020d}", datetime.now(UTC)).items():
                    wall, scripts = _time(watch, port, path)
                    row = rows.setdefault(name, {})
                    row[f"{NAMED[size]} ms"] = statistics.median(wall)
                    row[f"{NAMED[size]} script"] = statistics.median(scripts)
                    typical = max(typical, statistics.median(scripts))
                    worst = max(worst, *scripts)
            watch.close()
        rows.setdefault("the longest script of all", {})[f"{NAMED[size]} script"] = worst
        told = f"ms of a request's longest script, {NAMED[size]} delayed"
        aims.append(Aim(told, typical, at_most=MOST_MS))
    note = f"ms: a request; script: the ms of its longest script; medians of {TIMES}"
    return [Report("The page by the number of delayed jobs", rows, "page", note, aims)]


def _time(watch: Stopwatch, port: int, path: str) -> tuple[list[float], list[float]]:
    """Milliseconds of each request, and of its longest script."""
    _get(port, path)
    watch.read()
    took, scripts = [], []
    for _ in range(TIMES):
        began = time.perf_counter()
        _get(port, path)
        took.append((time.perf_counter() - began) * 1e3)
        scripts.append(max(us for each in watch.read().values() for us in each) / 1e3)
    return took, scripts


def _get(port: int, path: str) -> None:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as line:
        line.request("GET", path)
        reply = line.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"{path} was answered with {reply.status}: {reply.read()[:200]!r}")
        reply.read()


@contextmanager
def _serving(url: str) -> Iterator[int]:
    """The page, at a free port."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app(url=url, local_role="viewer"), log_level="warning", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
