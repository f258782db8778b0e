"""`bide web` and `bide top`, as commands."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bide import Queue
from bide.cli.overview import _bars
from bide.views.timeline import MOST_QUEUES
from tests.support.console import at_terminal
from tests.support.eventually import PATIENCE
from tests.support.serving import Page

pytestmark = pytest.mark.slow


def command(*args: str, url: str) -> list[str]:
    return [sys.executable, "-m", "bide", *args, "-u", url]


@contextmanager
def running(*args: str, url: str) -> Iterator[tuple[subprocess.Popen[str], Page]]:
    """`bide web` on a free port, once it says that it is there."""
    process = subprocess.Popen(
        command("web", "--listen", "0", *args, url=url), stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        said = process.stdout.readline()
        assert said.startswith("The dashboard is at http://127.0.0.1:")
        yield process, Page(int(said.split(":")[2].split("/")[0]))
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def test_the_page_is_served_read_only_until_it_is_stopped(one_url: str, mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=60)
    with running(url=one_url) as (process, page):
        assert "read-only" in page.get("/queues").text
        assert page.post(verb="pause", q="mail").status == 403
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130


def test_an_operator_may_be_at_the_machine(one_url: str, mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=60)
    with running("--operator", "-q", "mail", url=one_url) as (_, page):
        assert page.post(verb="pause", q="mail").status == 303
    assert mail.counts().paused


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--listen", "0.0.0.0:0"], "would let other machines in, and no token is set"),
        (["--listen", "[::]:0"], "would let other machines in, and no token is set"),
        (["--listen", "page.example:80"], "would let other machines in, and no token is set"),
        (["--listen", "x"], "is not a port"),
        (["--listen", "127.0.0.1:99999"], "is not a port"),
        (["--listen", "é" * 100 + ":0"], "is not available"),
    ],
)
def test_where_it_may_not_listen_it_does_not(args: list[str], says: str, one_url: str) -> None:
    env = dict(os.environ)
    if "é" in args[1]:  # what is no name of a machine is found out when one may listen there
        env["BIDE_WEB_VIEWER_TOKEN"] = "look-look-look-look"
    done = subprocess.run(
        command("web", *args, url=one_url),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=env,
    )
    assert done.returncode == 2
    assert says in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_top_shows_what_is_due_queues_and_workers(one_url: str, mail: Queue) -> None:
    mail.enqueue_many([mail.prepare("shop:remind", (i,), delay=600) for i in range(5)])
    mail.pause()
    env = os.environ | {"COLUMNS": "100"}
    done = subprocess.run(
        command("top", "--once", url=one_url),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=env,
    )
    assert done.returncode == 0, done.stderr
    assert "5 jobs due in the next hour" in done.stdout
    assert "█" in done.stdout
    assert "mail (paused)" in done.stdout
    assert "No worker runs." in done.stdout
    seen = json.loads(
        subprocess.run(
            command("top", "--json", url=one_url), capture_output=True, text=True, timeout=PATIENCE
        ).stdout
    )
    assert seen["queues"]["queues"]["mail"]["delayed"] == 5


def test_top_shows_what_is_due_beside_a_burst() -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)
    stretches = [
        {"at": (now + timedelta(minutes=i)).isoformat(), "due": {"mail": 900 if i == 5 else 4}}
        for i in range(20)
    ]
    end = now + timedelta(minutes=20)
    line = {"now": now.isoformat(), "to": end.isoformat(), "span": "hour", "stretches": stretches}
    assert _bars(line, 20) == f"now {'▄' * 5}█{'▄' * 14} +1 hour; cut: up to 900"


def test_top_of_nothing_says_what_to_do(one_url: str) -> None:
    done = subprocess.run(
        command("top", url=one_url), capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout.startswith("No queue has been used yet; ")


def test_elsewhere_than_at_a_terminal_top_prints_once_and_cuts_nothing(
    one_url: str, mail: Queue
) -> None:
    name = "notifications-of-the-day-before-yesterday" * 2
    with closing(Queue(name, url=one_url)) as queue:
        queue.enqueue("shop:remind", delay=60)
    done = subprocess.run(
        command("top", url=one_url),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env=os.environ | {"FORCE_COLOR": "1", "COLUMNS": "40"},
    )
    assert done.returncode == 0, done.stderr
    assert name in done.stdout
    assert "\x1b[?1049h" not in done.stdout
    shown = at_terminal(Path.cwd(), "top", url=one_url, TERM="dumb")
    assert (shown.code, "1 job due in the next hour" in shown.text) == (0, True)


def test_top_counts_the_jobs_of_queues_whose_bars_it_does_not_draw(one_url: str) -> None:
    for i in range(MOST_QUEUES + 2):
        with closing(Queue(f"q{i:02}", url=one_url)) as queue:
            queue.enqueue("shop:remind", delay="59m59s")
            queue.enqueue("shop:remind", delay="2h")
            queue.enqueue("shop:remind")
    found = subprocess.run(
        command("top", "--json", url=one_url), capture_output=True, text=True, timeout=PATIENCE
    ).stdout
    line = json.loads(found)["timeline"]
    for kind in ("ahead", "overdue", "later"):
        assert [*line[kind].values()] == [1] * (MOST_QUEUES + 2), kind


def test_top_gives_the_screen_back_when_it_is_told_to_stop(one_url: str, mail: Queue) -> None:
    mail.enqueue("shop:remind", delay=60)
    process, terminal = pty.fork()
    if not process:
        os.execv(sys.executable, command("top", url=one_url))
    shown = b""
    try:
        while b"mail" not in shown:
            shown += os.read(terminal, 65_536)
        os.kill(process, signal.SIGTERM)
        with contextlib.suppress(OSError):  # its end
            while more := os.read(terminal, 65_536):
                shown += more
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 128 + signal.SIGTERM
        assert shown.rstrip().endswith(b"\x1b[?25h\x1b[?1049l"), "with a cursor, as it was before"
    finally:
        os.close(terminal)
