"""Running `bide` as its users do: as a program, or at a terminal."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

TASKS = """
import sys

def greet(name="you", times=1):
    print("hello", name, times, file=sys.stderr, flush=True)
    return f"hello {name}" * times

def boom(text):
    raise ValueError(text)

def chatty(text):
    from bide import current_job
    current_job().progress(0.5, "half way")
    current_job().log("said " + text)
    raise ValueError(text)
"""

DEADLINE = 60.0


def environment(url: str | None, **more: str) -> dict[str, str]:
    """What the program sees: nothing of bide's but what the test says."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("BIDE_")}
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        env.pop(name, None)
    return env | more | ({"BIDE_URL": url} if url else {})


def bide(
    home: Path, *args: str, url: str | None = None, stdin: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    """Run the program to its end, its output taken."""
    return subprocess.run(
        [sys.executable, "-m", "bide", *args],
        cwd=home,
        env=environment(url, **env),
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLINE,
        check=False,
    )


def said(done: subprocess.CompletedProcess[str], code: int = 0) -> str:
    """What it printed, having ended with that code."""
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout


def error_of(done: subprocess.CompletedProcess[str], code: int = 1) -> str:
    """The one sentence of a command that failed."""
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("Error: ")
    return lines[0]


# So that Ctrl-C reaches it as a signal.
AT_A_TERMINAL = """
import fcntl, runpy, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
runpy.run_module("bide", run_name="__main__")
"""


class Shown(NamedTuple):
    """What stood on a terminal."""

    code: int
    text: str


def at_terminal(
    home: Path,
    *args: str,
    url: str,
    types: dict[str, str] | None = None,
    columns: int = 80,
    **env: str,
) -> Shown:
    """Run the program at a terminal of its own.

    Args:
        home: the directory to stand in.
        args: the command line.
        url: the server.
        types: what to type once a text has appeared.
        columns: the terminal's width.
        env: more of the environment.
    """
    terminal, theirs = pty.openpty()
    env = {"TERM": "xterm-256color", "COLUMNS": str(columns)} | env
    program = subprocess.Popen(
        [sys.executable, "-c", AT_A_TERMINAL, *args],
        cwd=home,
        env=environment(url, **env),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    waits = dict(types or {})
    shown = b""
    try:
        while select.select([terminal], [], [], DEADLINE)[0]:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # the other end has closed
                break
            if not piece:
                break
            shown += piece
            for text in [text for text in waits if text.encode() in shown]:
                os.write(terminal, waits.pop(text).encode())
    finally:
        os.close(terminal)
        code = program.wait(DEADLINE)
    return Shown(code, shown.decode().replace("\r\n", "\n"))
