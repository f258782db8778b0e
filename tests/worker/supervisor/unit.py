"""A supervisor and its workers, started as users start them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.console import environment
from tests.support.eventually import PATIENCE
from tests.support.processes import children, state
from tests.support.workers import eventually

TASKS = """
import asyncio, os, pathlib, subprocess, sys, threading, time

def note(name):
    pathlib.Path("seen").mkdir(exist_ok=True)
    (pathlib.Path("seen") / name).touch()

def pid():
    return os.getpid()

def slow(seconds, name="slow"):
    note(name)
    until = time.monotonic() + seconds
    while time.monotonic() < until and not pathlib.Path("gate").exists():
        time.sleep(0.01)
    return os.getpid()

def leave(code):
    os._exit(code)

def block(seconds):
    time.sleep(seconds)

async def block_loop():
    while not pathlib.Path("gate").exists():
        time.sleep(0.01)

async def leave_behind(how):
    async def behind():
        if how == "stop":
            asyncio.get_running_loop().stop()
        else:
            raise SystemExit(3)
    asyncio.create_task(behind())
    await asyncio.sleep(0.05)

def leave_thread():
    args = {"name": "left-by-a-job", "daemon": False}
    threading.Thread(target=time.sleep, args=(600,), **args).start()

def leave_daemon(name):
    code = (
        "import os, sys, time; os.setsid(); open(sys.argv[1], 'w').write(str(os.getpid())); "
        "time.sleep(600)"
    )
    starter = (
        "import subprocess, sys; "
        "subprocess.Popen([sys.executable, '-c', sys.argv[1], sys.argv[2]])"
    )
    subprocess.run([sys.executable, "-c", starter, code, name + ".part"], check=True)
    while not os.path.exists(name + ".part") or not open(name + ".part").read():
        time.sleep(0.01)
    os.rename(name + ".part", name)
"""


class Unit:
    """What `bide worker …` with a supervisor is while a test looks at it."""

    def __init__(self, home: Path, process: subprocess.Popen[str], log: Path) -> None:
        self.home = home
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        """What all of them have logged."""
        return self._log.read_text("utf-8")

    def logged(self, pattern: str, times: int = 1) -> list[str]:
        """Wait until something was logged so often."""
        eventually(lambda: len(re.findall(pattern, self.log)) >= times)
        return re.findall(pattern, self.log)

    def worker_pids(self) -> list[int]:
        """The workers' processes."""
        return [pid for pid in children(self.process.pid) if state(pid) != "Z"]

    def saw(self, name: str) -> None:
        """Wait until a task has noted something."""
        eventually((self.home / "seen" / name).exists)

    def open_gate(self) -> None:
        """Let slow tasks end."""
        (self.home / "gate").touch()

    def signal(self, number: int) -> None:
        """Signal the supervisor."""
        self.process.send_signal(number)

    def wait(self) -> int:
        """Wait for its end; its exit code."""
        return self.process.wait(PATIENCE)


@contextmanager
def started(
    home: Path, url: str, *args: str, limits: Mapping[str, float] | None = None, **env: str
) -> Iterator[Unit]:
    """`bide worker shop` with arguments; ended by force if the test leaves it.

    Some constants of the supervisor may have other values (`limits`), by their names.
    """
    program: Sequence[str | Path] = [Path(sys.executable).with_name("bide")]
    if limits:
        scaled = f"import bide.worker.supervisor as s; vars(s).update({dict(limits)!r})"
        program = [sys.executable, "-c", f"{scaled}; from bide.cli import main; main()"]
    mark = next(tempfile._get_candidate_names())  # type: ignore[attr-defined]
    log = home / f"log-{mark}"
    (home / "shop.py").write_text(TASKS)
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [*program, "worker", "shop", *args],
            cwd=home,
            env=environment(url, BIDE_TEST_MARK=mark, **env),
            stderr=stderr,
            text=True,
        )
    try:
        yield Unit(home, process, log)
        eventually(lambda: not marked(mark))
    finally:
        process.kill()
        for pid in marked(mark):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


def marked(mark: str) -> list[int]:
    """All processes that descend from one unit, zombies but for its own apart."""
    found = []
    for name in os.listdir("/proc"):
        with suppress(OSError):
            if name.isdigit() and f"BIDE_TEST_MARK={mark}".encode() in (
                Path("/proc", name, "environ").read_bytes().split(b"\0")
            ):
                found.append(int(name))
    return found


def stopped(pid: int) -> bool:
    """Whether a process is stopped."""
    return state(pid) == "T"
