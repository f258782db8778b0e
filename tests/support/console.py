"""Running `bide` as its users do: as a program, or at a terminal."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from bide.cli.main import run
from bide.client import config

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
IMPATIENCE = 2.0
CTRL_C = b"\x03"


def environment(url: str | None, **more: str) -> dict[str, str]:
    """What the program sees: nothing of bide's but what the test says."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("BIDE_")}
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        env.pop(name, None)
    return env | more | ({"BIDE_URL": url} if url else {})


def bide(
    home: Path, *args: str, url: str | None = None, stdin: str = "", **env: str
) -> subprocess.CompletedProcess[str]:
    """Run one command line to its end, its output taken.

    In this process where that makes no difference: it is ten times as fast. A command that imports
    modules or handles signals, and a variable that other code reads, need a process of their own.
    """
    if not env.keys() - config.VARIABLES.keys() and not {
        "worker",
        "outbox",
        "enqueue",
        "demo",
        "dev",
    } & {*args}:
        return _here(home, args, environment(url, **env), stdin)
    try:
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
    except subprocess.TimeoutExpired as error:
        output = b"".join(text for text in (error.stdout, error.stderr) if text)
        raise AssertionError(
            f"not ended within {DEADLINE:g} s; it said:\n{output.decode('utf-8', 'replace')}"
        ) from None


def _here(
    home: Path, args: tuple[str, ...], env: dict[str, str], stdin: str
) -> subprocess.CompletedProcess[str]:
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(home),
        patch.dict(os.environ, env, clear=True),
        patch.object(sys, "stdin", io.StringIO(stdin)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        config._read_nearest.cache_clear()
        code = run(args)
    return subprocess.CompletedProcess(args, code, out.getvalue(), err.getvalue())


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


# So that Ctrl-C reaches it as a signal, though the tests may run in the background, where shells
# have it ignored.
AT_A_TERMINAL = """
import fcntl, runpy, signal, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
signal.signal(signal.SIGINT, signal.default_int_handler)
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
    typed = b""
    until = time.monotonic() + DEADLINE
    try:
        while time.monotonic() < until:
            if not select.select([terminal], [], [], IMPATIENCE)[0]:
                # Python may miss a signal just before it waits for input; people try again.
                if typed.endswith(CTRL_C):
                    os.write(terminal, CTRL_C)
                continue
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # the other end has closed
                break
            if not piece:
                break
            shown += piece
            for text in [text for text in waits if text.encode() in shown]:
                typed = waits.pop(text).encode()
                os.write(terminal, typed)
    finally:
        os.close(terminal)
        code = program.wait(DEADLINE)
    return Shown(code, shown.decode().replace("\r\n", "\n"))
