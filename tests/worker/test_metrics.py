"""`/metrics` of workers and `bide metrics`, as a scraper reads them."""

from __future__ import annotations

import asyncio
import http.client
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
import redis
from prometheus_client.parser import text_string_to_metric_families

from bide import Queue, Worker
from bide.cli.health import answering
from bide.embedded import Server
from bide.model.latency import CONTENT_TYPE
from bide.views._sync import Site
from bide.worker.supervisor import serve
from tests.support.console import bide, environment, error_of, said
from tests.support.workers import eventually
from tests.worker.supervisor.unit import Unit, started

Read = dict[tuple[str, ...], float]


def read(text: str) -> Read:
    """Name and values of labels -> value."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scrape(unit: Unit) -> Read:
    (port,) = unit.logged(r"on 127\.0\.0\.1:(\d+)")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=90) as answer:
        assert answer.headers["Content-Type"] == CONTENT_TYPE
        return read(answer.read().decode())


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["auto", "process"])
def test_workers_tell_what_they_have_done(tmp_path: Path, one_url: str, executor: str) -> None:
    with (
        started(tmp_path, one_url, "-x", executor, "--health-port", "127.0.0.1:0") as unit,
        closing(Queue("default", url=one_url)) as queue,
    ):
        unit.logged("serves")
        for _ in range(3):
            queue.enqueue("shop:pid")
        queue.enqueue("shop:slow", "no number", retry=0)
        queue.enqueue("shop:block", 0.02, delay=0.02)
        queue.enqueue("shop:typo")  # it is claimed again and again
        settled = "bide_worker_settled_jobs_total"

        def ended() -> list[float | None]:
            seen = scrape(unit)
            ends = ("pid", "complete"), ("slow", "fail"), ("block", "complete")
            return [seen.get((settled, "default", f"shop:{of}", end)) for of, end in ends]

        eventually(lambda: ended() == [3, 1, 1])
        eventually(lambda: scrape(unit)[settled, "default", "other", "snooze"] >= 1)
        seen = scrape(unit)
        assert seen[settled, "default", "shop:slow", "crash"] == 0
        assert {key[2] for key in seen if key[0] == settled} == {
            *("other", "shop:block", "shop:pid", "shop:slow"),
        }
        assert seen["bide_worker_claimed_jobs_total", "default"] >= 6
        assert seen["bide_worker_claims_total", "default"] >= 1
        assert seen["bide_worker_refused_settles_total", "default"] == 0
        assert seen["bide_worker_processes",] == 1
        for name in ("lateness", "run"):
            assert seen[f"bide_worker_{name}_seconds_count", "default", "shop:pid"] == 3
            assert seen[f"bide_worker_{name}_seconds_bucket", "default", "shop:pid", "+Inf"] == 3
        assert seen["bide_worker_run_seconds_sum", "default", "shop:block"] >= 0.02
        assert seen["bide_worker_run_seconds_bucket", "default", "shop:block", "0.01"] == 0
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["auto", "process"])
def test_a_job_that_runs_has_started(tmp_path: Path, one_url: str, executor: str) -> None:
    with (
        started(tmp_path, one_url, "-x", executor, "--health-port", "127.0.0.1:0") as unit,
        closing(Queue("default", url=one_url)) as queue,
    ):
        unit.logged("serves")
        queue.enqueue("shop:slow", 600)
        began = ("bide_worker_lateness_seconds_count", "default", "shop:slow")
        eventually(lambda: scrape(unit).get(began) == 1)
        assert scrape(unit)["bide_worker_run_seconds_count", "default", "shop:slow"] == 0
        unit.open_gate()
        eventually(
            lambda: scrape(unit)["bide_worker_run_seconds_count", "default", "shop:slow"] == 1
        )
        assert scrape(unit)[began] == 1
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0


@pytest.mark.slow
def test_what_a_dead_worker_has_done_still_counts(tmp_path: Path, one_url: str) -> None:
    with (
        started(tmp_path, one_url, "--health-port", "127.0.0.1:0") as unit,
        closing(Queue("default", url=one_url)) as queue,
    ):
        unit.logged("serves")
        queue.enqueue("shop:pid")
        done = ("bide_worker_settled_jobs_total", "default", "shop:pid", "complete")
        eventually(lambda: scrape(unit).get(done) == 1)
        queue.enqueue("shop:leave", 3, on_crash="fail")
        eventually(lambda: scrape(unit)["bide_worker_deaths_total",] == 1)
        unit.logged("serves", 2)
        queue.enqueue("shop:pid")
        eventually(lambda: scrape(unit).get(done) == 2)
        assert scrape(unit)["bide_worker_processes",] == 1
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0


def test_nothing_is_counted_where_nobody_asks(one_url: str) -> None:
    worker = Worker("default", url=one_url)
    worker.run(burst=True)
    assert worker.metrics is None


def fill(url: str) -> None:
    with closing(Queue("mail", url=url)) as mail, closing(Queue("odd", url=url)) as odd:
        for delay in (0, 9, 50, 500, 50_000, 500_000):
            mail.enqueue("shop:pid", delay=delay, priority=delay % 7)
        mail.enqueue("shop:pid", job_id="gone", delay=9)
        mail.cancel("gone")
        mail.pause()
        odd.enqueue("shop:pid", delay=0.001)


def test_the_server_tells_what_queues_hold(tmp_path: Path, url: str) -> None:
    fill(url)
    seen = read(said(bide(tmp_path, "metrics", url=url)))
    states = ("delayed", "waiting", "active", "completed", "failed", "cancelled")
    assert [seen["bide_jobs", "mail", state] for state in states] == [5, 1, 0, 0, 0, 1]
    within = {
        key[2]: value for key, value in seen.items() if key[:2] == ("bide_jobs_due_within", "mail")
    }
    assert within == {"1": 0, "10": 1, "60": 2, "600": 3, "3600": 3, "86400": 4}
    assert 0 < seen["bide_overdue_seconds", "mail"] < 60
    assert (seen["bide_queue_paused", "mail"], seen["bide_queue_paused", "odd"]) == (1, 0)
    assert (seen["bide_queue_limited", "mail"], seen["bide_queue_limited", "odd"]) == (0, 0)
    assert seen["bide_queue_workers", "mail"] == 0
    assert seen["bide_jobs_cancelled_total", "mail"] == 1
    assert seen["bide_jobs_reclaimed_total", "odd"] == 0

    only = read(said(bide(tmp_path, "metrics", "-q", "odd", url=url)))
    assert {key[1] for key in only if not key[0].startswith("bide_server")} == {"odd"}
    assert "There is no queue 'nil'" in error_of(bide(tmp_path, "metrics", "-q", "nil", url=url), 3)


@pytest.mark.parametrize(
    ("settings", "limited"),
    [
        ({"rate": "1/h"}, 1),
        ({"concurrency": 3}, 1),
        ({"group_rate": "1/h"}, 1),
        ({"rate": None}, 0),
    ],
)
def test_a_queue_whose_jobs_a_limit_may_hold_back_is_marked(
    tmp_path: Path, url: str, settings: dict[str, Any], limited: int
) -> None:
    with closing(Queue("mail", url=url)) as mail:
        mail.enqueue("shop:pid")
        mail.configure(**settings)
        marked = read(said(bide(tmp_path, "metrics", url=url)))["bide_queue_limited", "mail"]
    assert marked == limited


SERVER = ("bide_server_memory_bytes", "bide_server_memory_max_bytes")


@pytest.mark.parametrize("denied", [False, True])
def test_the_server_tells_its_memory(
    tmp_path: Path, tmp_server: Callable[..., Server], denied: bool
) -> None:
    url = tmp_server().url
    with redis.Redis.from_url(url) as server:
        server.config_set("maxmemory", "64mb")
        if denied:
            server.execute_command("ACL", "SETUSER", "default", "-info")
    seen = read(said(bide(tmp_path, "metrics", url=url)))
    found = {name: [value for key, value in seen.items() if key[0] == name] for name in SERVER}
    if denied:
        assert found == {name: [] for name in SERVER}
    else:
        ((used,), most) = found.values()
        assert most == [64 << 20]
        assert 100_000 < used < 64 << 20


def test_a_server_without_queues_has_metrics_too(tmp_path: Path, one_url: str) -> None:
    text = said(bide(tmp_path, "metrics", url=one_url))
    assert "# TYPE bide_jobs gauge\n" in text
    assert {key[0] for key in read(text)} == {*SERVER}


def test_whoever_gives_up_has_the_server_asked_no_second_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, may_end = [], threading.Event()

    def slow(site: Any, queues: Any) -> str:
        asked.append(queues)
        may_end.wait(90)
        return "figures"

    monkeypatch.setattr("bide.cli.health.queue_metrics", slow)
    answer = answering(Site("redis://127.0.0.1:1", None), ["mail"])

    async def main() -> str:
        for _ in range(2):
            with suppress(TimeoutError):
                async with asyncio.timeout(0.05):
                    await answer()
        asyncio.get_running_loop().call_soon(may_end.set)
        return await answer()

    try:
        assert asyncio.run(main()) == "figures"
    finally:
        may_end.set()
    assert asked == [["mail"]]


def test_who_asks_a_server_that_does_not_answer_is_told_so_and_keeps_nobody(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("bide.worker.supervisor._METRICS_TIMEOUT", 0.01)

    async def main() -> bytes:
        never, asked = asyncio.Event(), asyncio.Event()

        async def figures() -> str:
            asked.set()
            await never.wait()
            return ""

        server = await serve("127.0.0.1", 0, {}, figures)
        address = server.sockets[0].getsockname()[:2]
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        answer = await reader.read()
        writer.close()
        monkeypatch.setattr("bide.worker.supervisor._METRICS_TIMEOUT", 60)
        asked.clear()
        waits.connect(address)
        waits.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        await asked.wait()
        server.close()
        return answer

    with socket.socket() as waits:
        answer = asyncio.run(main())
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert answer.endswith(b"no metrics came within 0.01 seconds\n")
    assert caplog.text == "", "nothing is said of who still waits when it ends"


def test_half_requests_are_given_up_and_the_newest_of_them_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bide.worker.supervisor._MOST_WAITING", 2)

    async def main() -> None:
        server = await serve("127.0.0.1", 0, {"/livez": str})
        address = server.sockets[0].getsockname()[:2]

        async def half() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET /livez HT")
            return reader, writer

        monkeypatch.setattr("bide.worker.supervisor._PATIENCE", 60)
        first, second, third = [await half() for _ in range(3)]
        assert not await first[0].read(), "it is closed for the newest"
        third[1].write(b"TP/1.1\r\n\r\n")
        assert (await third[0].read()).startswith(b"HTTP/1.1 200 ")
        monkeypatch.setattr("bide.worker.supervisor._PATIENCE", 0.1)
        slow = await half()
        assert not await slow[0].read(), "it has had its time"
        second[1].write(b"TP/1.1\r\n\r\n")
        assert (await second[0].read()).startswith(b"HTTP/1.1 200 ")
        for _, writer in (first, second, third, slow):
            writer.close()
        server.close()

    asyncio.run(main())


def test_no_name_of_a_machine_is_one_sentence(tmp_path: Path, one_url: str) -> None:
    done = bide(tmp_path, "metrics", "--port", "0", "--host", "a..b", url=one_url)
    assert error_of(done).startswith("Error: The command cannot listen on a..b, port 0 (")


def test_a_host_without_a_port_is_a_mistake(tmp_path: Path, one_url: str) -> None:
    done = bide(tmp_path, "metrics", "--host", "0.0.0.0", url=one_url)
    assert done.returncode == 2
    assert "Error: --host is where --port answers; give that too: --port 9500." in done.stderr


@pytest.mark.slow
def test_it_serves_until_it_is_stopped(tmp_path: Path, tmp_server: Callable[..., Server]) -> None:
    server = tmp_server()
    fill(server.url)
    process = subprocess.Popen(
        [sys.executable, "-m", "bide", "metrics", "--port", "0"],
        cwd=tmp_path,
        env=environment(server.url),
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    with process, process.stderr as lines:
        try:
            found = re.search(r"answers http://127\.0\.0\.1:(\d+)/metrics$", lines.readline())
            assert found is not None

            def ask(path: str) -> tuple[int, str]:
                connection: Any = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=90)
                with closing(connection):
                    connection.request("GET", path)
                    answer = connection.getresponse()
                    return answer.status, answer.read().decode()

            status, text = ask("/metrics")
            jobs = [read(text)["bide_jobs", "mail", state] for state in ("delayed", "waiting")]
            assert (status, sum(jobs)) == (200, 6)
            assert ask("/") == (404, "there is /metrics\n")
            server.kill()
            status, text = ask("/metrics")
            assert status == 503
            assert "Traceback" not in text
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0
