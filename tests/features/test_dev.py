"""`bide dev`: what it starts, what it replaces, what it keeps, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import json
import os
import queue
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from bide import Queue
from bide.cli.dev import DevProcess
from bide.views._sync import Site
from tests.support.console import bide, environment, error_of
from tests.support.eventually import eventually
from tests.support.processes import descendants
from tests.support.serving import Page

pytestmark = pytest.mark.slow

APP = """
from bide import Queue

queue = Queue("letters")

@queue.task
def hello(name: str) -> None:
    print(f"hello {name}")
"""
PATIENCE = 30.0


class Running:
    """A `bide dev`, and what it says."""

    def __init__(self, home: Path, *args: str, **more: str) -> None:
        self.home = home
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bide", "dev", *args],
            cwd=home,
            env=environment(
                None, PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}", **more
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.said: list[str] = []

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                self._lines.put(line)

    def wait_for(self, pattern: str) -> str:
        """The next line in which it says this."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                line = self._lines.get(timeout=max(0, until - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {pattern!r} in:\n{''.join(self.said)}") from None
            self.said.append(line)
            if re.search(pattern, line):
                return line

    @property
    def url(self) -> str:
        """Where its server is, as it has said by now."""
        found = re.search(r"export BIDE_URL='(.*)'", "".join(self.said))
        assert found is not None
        return found[1]

    @property
    def page(self) -> str:
        """The address of its dashboard, which it has printed by now."""
        found = re.search(r"the dashboard is at (http://127.0.0.1:\d+)", "".join(self.said))
        assert found is not None
        return found[1]

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)  # at the end of the pipe, nobody can write to it any more
        assert not self._reader.is_alive()
        return code


Start = Callable[..., Running]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started = []

    def start(*args: str, home: Path = tmp_path, **more: str) -> Running:
        started.append(Running(home, *args, **more))
        return started[-1]

    yield start
    for running in started:
        if running.process.poll() is None:
            running.stop()


def gone(pids: set[int]) -> bool:
    until = time.monotonic() + PATIENCE
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        if time.monotonic() > until:
            return False
        time.sleep(0.01)
    return True


def test_the_page_s_five_lines_and_one_command(tmp_path: Path, start: Start) -> None:
    page = (Path(__file__).parents[2] / "docs/howto/develop.md").read_text("utf-8")
    code, command = re.findall(r"```(?:python|console)\n(.*?)```", page, re.S)
    (tmp_path / "app.py").write_text(code)
    program, verb, *args = shlex.split(command.splitlines()[0].removeprefix("$ "))
    assert [program, verb] == ["bide", "dev"]
    assert len([line for line in code.splitlines() if line and line[0] != "#"]) == 5
    start(*args).wait_for("^hello world$")


def test_the_worker_follows_the_source(tmp_path: Path, start: Start) -> None:
    app = tmp_path / "app.py"
    app.write_text(APP)
    dev = start("app.py")
    dev.wait_for("embedded: not for production")
    dev.wait_for("serves letters")
    letters = Queue("letters", url=dev.url)
    letters.enqueue("app:hello", "ann", delay=0.2)
    dev.wait_for("^hello ann$")

    app.write_text(APP.replace("hello {name}", "good morning, {name}"))
    dev.wait_for("app.py changed")
    dev.wait_for("serves letters")
    letters.enqueue("app:hello", "bob")
    dev.wait_for("^good morning, bob$")

    app.write_text(APP + "\n\n)\n")
    dev.wait_for(r"app\.py\", line 11")
    dev.wait_for("SyntaxError")
    dev.wait_for("no worker runs")
    assert Site(dev.url, None).workers() == []
    waiting = letters.enqueue("app:hello", "eve")
    assert waiting.state == "waiting"

    app.write_text(APP.replace("hello {name}", "welcome back, {name}"))
    dev.wait_for("^welcome back, eve$")

    processes = descendants(dev.process.pid)
    assert len(processes) >= 5, "server, watcher, worker, page, watcher"
    letters.close()
    assert dev.stop() == 0
    assert gone(processes)
    assert not (tmp_path / ".bide" / "server.sock").exists()
    assert "importlib" not in "".join(dev.said)


OUTBOX = """
import sqlalchemy as sa
from sqlalchemy.orm import Session
from bide.contrib.sqlalchemy import Outbox

engine = sa.create_engine("sqlite:///shop.db")
outbox = Outbox(sa.MetaData(), engine, fast=False)
outbox.tables.outbox.metadata.create_all(engine)


def place(name):
    with Session(engine) as session, session.begin():
        outbox.enqueue(session, hello, name)
"""


@pytest.mark.parametrize("profiles", ["", "[tool.bide.workers.a]\n[tool.bide.workers.b]\n"])
def test_it_relays_the_rows_of_an_outbox(tmp_path: Path, start: Start, profiles: str) -> None:
    (tmp_path / "pyproject.toml").write_text(profiles)
    (tmp_path / "app.py").write_text(APP + OUTBOX)
    subprocess.run([sys.executable, "-c", "import app"], cwd=tmp_path, check=True)  # the tables
    dev = start(
        "app.py",
        "--outbox",
        "app:outbox",
        "--",
        sys.executable,
        "-c",
        "import app; app.place('ann')",
    )
    dev.wait_for("^hello ann$")
    with urlopen(f"{dev.page}/api/outbox") as answer:
        assert [shown["name"] for shown in json.load(answer)["outboxes"]] == ["app:outbox"]
    assert dev.stop() == 0
    assert "Traceback" not in "".join(dev.said)


def test_an_outbox_that_is_missing_is_a_mistake_in_the_source(tmp_path: Path, start: Start) -> None:
    (tmp_path / "app.py").write_text(APP)
    dev = start("app.py", "--outbox", "app:outbox")
    for _ in range(2):  # the worker and the dashboard, in any order
        dev.wait_for("no worker runs|the dashboard shows no rows of app:outbox .*no variable")
    (tmp_path / "app.py").write_text(APP + OUTBOX)
    dev.wait_for("serves letters")


def test_a_worker_of_each_profile_runs(tmp_path: Path, start: Start) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.bide.worker]\nmodules = 'app'\n"
        "[tool.bide.workers.letters]\nqueues = 'letters'\n"
        "[tool.bide.workers.parcels]\nqueues = 'parcels'\nconcurrency = 3\n"
    )
    app = tmp_path / "app.py"
    app.write_text(APP + "\nQueue('parcels').task(name='parcel')(hello.function)\n")
    dev = start("--", "sh", "-c", "echo beside; sleep 600")
    dev.wait_for("^beside$")
    for _ in range(2):
        dev.wait_for(r"worker (letters|parcels)\.\w+ serves")
    site = Site(dev.url, None)
    eventually(lambda: len(site.workers()) == 2)
    abouts = [worker.about for worker in site.workers()]
    served = {(*about.queues, about.concurrency) for about in abouts}
    assert served == {("letters", 100), ("parcels", 3)}
    assert "WARNING" not in "".join(dev.said)
    with closing(Queue("parcels", url=dev.url)) as parcels:
        parcels.enqueue("parcel", "ann")
        dev.wait_for("^hello ann$")
        app.write_text(APP + "\n\n)\n")
        dev.wait_for("no worker runs until")
        assert "".join(dev.said).count("SyntaxError") == 1, "it is shown once, not by each"
        app.write_text(APP.replace("hello {name}", "welcome, {name}"))
        dev.wait_for(r"serves letters")
        with closing(Queue("letters", url=dev.url)) as letters:
            letters.enqueue("app:hello", "bob")
        dev.wait_for("^welcome, bob$")
    processes = descendants(dev.process.pid)
    assert dev.stop() == 0
    assert gone(processes)


def test_no_app_and_no_modules_is_an_error(tmp_path: Path) -> None:
    assert "as in `bide dev app.py`" in error_of(bide(tmp_path, "dev"), 2)


def test_the_page_is_beside_it_and_ends_with_it(tmp_path: Path, start: Start) -> None:
    (tmp_path / "app.py").write_text(APP)
    dev = start("app.py")
    said = dev.wait_for("the dashboard is at ")
    port = int(re.findall(r"http://127.0.0.1:(\d+)/", said)[0])
    dev.wait_for("serves letters")
    with closing(Queue("letters", url=dev.url)) as letters:
        letters.enqueue("app:hello", "ann", delay=3600)
    page = Page(port)
    assert "letters" in page.get("/queues").text
    assert page.post(verb="pause", q="letters").status == 303, "whoever develops may change things"
    with socket.create_connection(("127.0.0.1", port)) as watching:  # a browser that stays
        watching.sendall(b"GET /api/live HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        assert watching.recv(15) == b"HTTP/1.1 200 OK"
        processes = descendants(dev.process.pid)
        assert dev.stop() == 0
    assert gone(processes)
    with pytest.raises(ConnectionError):
        page.get("/queues")


def test_without_what_the_page_needs_it_says_how_to_get_it(tmp_path: Path, start: Start) -> None:
    (tmp_path / "app.py").write_text(APP)
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "sitecustomize.py").write_text("import sys\nsys.modules['uvicorn'] = None\n")
    dev = start("app.py", PYTHONPATH=str(bare))
    assert dev.wait_for("to get") == ("bide dev: to get the dashboard: pip install 'bide[web]'\n")
    dev.wait_for("serves letters")
    assert dev.stop() == 0


def test_its_data_stay(tmp_path: Path, start: Start) -> None:
    (tmp_path / "app.py").write_text(APP)
    dev = start("app.py")
    dev.wait_for("serves letters")
    with closing(Queue("letters", url=dev.url)) as letters:
        letters.enqueue("app:hello", "ann", delay=0.5)
        letters.enqueue("app:hello", "bob", delay=3600, job_id="bob")
    assert dev.stop(signal.SIGHUP) == 0

    again = start("app.py")
    again.wait_for("^hello ann$")
    with closing(Queue("letters", url=again.url)) as letters:
        assert letters.fetch("bob").state == "delayed"


def test_a_second_one_says_that_there_is_one(tmp_path: Path, start: Start) -> None:
    (tmp_path / "app.py").write_text(APP)
    dev = start("app.py")
    dev.wait_for("serves letters")
    said = error_of(bide(tmp_path, "dev", "app.py"))
    assert f"runs in this directory (process {dev.process.pid})" in said


def test_nothing_outlives_it_even_when_it_is_killed(tmp_path: Path, start: Start) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "beside.py").write_text(
        "import os, time\nprint('beside on', os.environ['BIDE_URL'])\ntime.sleep(600)\n"
    )
    dev = start("app.py", "--", sys.executable, "beside.py")
    dev.wait_for("beside on unix://")
    dev.wait_for("serves letters")
    processes = descendants(dev.process.pid)
    assert len(processes) >= 7, "server, watcher, worker, page, watcher, program, watcher"
    try:
        assert dev.stop(signal.SIGKILL) == -signal.SIGKILL
        assert gone(processes)
    finally:
        for pid in processes:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def test_what_does_not_want_to_end_is_killed_where_dev_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bide.cli.dev.SPARE", 0.5)
    stubborn = (
        "import os, signal\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "os.write(1, b'!')\nsignal.pause()\n"
    )

    async def main() -> int:
        part = DevProcess.start(
            [sys.executable, "-c", stubborn], 0.5, environment={}, stdout=subprocess.PIPE
        )
        try:
            part.watch()
            output, watcher = part._process.stdout, part._watcher
            assert output is not None
            assert watcher is not None
            with output:
                assert await asyncio.to_thread(output.read, 1) == b"!"
            watcher.communicate()  # its line ends, as it does when `dev` is killed
            return await part.ended()
        finally:
            await part.end()

    assert asyncio.run(asyncio.wait_for(main(), PATIENCE)) == -signal.SIGKILL


def test_a_worker_that_dies_at_work_is_replaced(tmp_path: Path, start: Start) -> None:
    (tmp_path / "app.py").write_text(APP + "\n@queue.task\ndef die() -> None:\n    os._exit(3)\n")
    with (tmp_path / "app.py").open("a") as file:
        file.write("\nimport os\n")
    dev = start("app.py", "--", "no-such-program")
    dev.wait_for("no-such-program cannot be started")
    dev.wait_for("serves letters")
    with closing(Queue("letters", url=dev.url)) as letters:
        letters.enqueue("app:die", retention=0, on_crash="fail")
        dev.wait_for(r"the worker ended \(exit code 3\); it restarts")
        dev.wait_for("serves letters")
        letters.enqueue("app:hello", "ann")
        dev.wait_for("^hello ann$")


def test_a_queue_with_a_server_of_its_own_is_told(tmp_path: Path, start: Start) -> None:
    (tmp_path / "app.py").write_text(APP.replace('"letters"', '"letters", url="redis://elsewhere"'))
    dev = start("app.py")
    dev.wait_for(r"jobs of app:hello go to redis://elsewhere \(queue letters\)")


def test_a_file_in_the_place_of_its_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / ".bide").touch()
    said = error_of(bide(tmp_path, "dev", "app.py"), 2)
    assert ".bide is a file, and `bide dev` needs a directory of this name" in said
