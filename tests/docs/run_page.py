"""Runs one page from top to bottom, in a process and an empty directory of its own.

    BIDE_URL=... python -c "from tests.docs.run_page import main; main('docs/index.md')"

What goes wrong is an exception whose message begins with the page and the line.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import importlib.util
import inspect
import io
import multiprocessing
import os
import re
import shlex
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.docs.pages import ROOT, Command, File, Python, Step, steps
from tests.support.compare import differs
from tests.support.eventually import eventually

DEADLINE = 60.0


def main(page: str) -> None:
    """Run a page of the repository."""
    sys.dont_write_bytecode = True
    run = PageRun(page)
    try:
        for step in steps((ROOT / page).read_text("utf-8")):
            if not step.needs or importlib.util.find_spec(step.needs) is not None:
                run.step(step)
        run.stop_workers()
    finally:
        run.close()


_forks = multiprocessing.get_context("forkserver")
_forks.set_forkserver_preload(["bide.cli.main"])


class Program:
    """A command in a process of its own; what it prints, on both streams, is collected in a file.

    `bide` is forked from a process that has imported it, and nothing else: half a second less.
    """

    def __init__(self, words: Sequence[str]) -> None:
        number, path = tempfile.mkstemp()
        os.close(number)
        self._told = Path(path)
        bide = words[0] == "bide"
        self._process = _forks.Process(
            target=_become, args=(path, bide, [*words[1:]], dict(os.environ))
        )
        self._process.start()

    def printed(self) -> str:
        """What it has printed so far."""
        return self._told.read_text("utf-8")

    def end(self, stop: bool = False) -> tuple[int, str]:
        """Wait for its end, having asked for it with `stop`; exit code and what it printed.

        A program is stopped once it has printed something: before, a signal may find it importing.
        """
        if stop:
            eventually(lambda: self.printed() or not self._process.is_alive())
            self._process.terminate()
        self._process.join(DEADLINE)
        code = self._process.exitcode
        self._process.kill()
        printed = self.printed()
        self._told.unlink()
        if code is None:
            raise AssertionError(f"it does not end:\n{printed}")
        return code, printed


def _become(path: str, bide: bool, args: Sequence[str], environment: dict[str, str]) -> None:
    """In the new process: run the command line, or a Python program."""
    to = os.open(path, os.O_WRONLY)
    os.dup2(to, 1)
    os.dup2(to, 2)
    os.environ.update(environment, COLUMNS="100")
    if bide:
        from bide.cli.main import run

        sys.dont_write_bytecode = True
        sys.exit(run(args))
    os.execv(sys.executable, [sys.executable, "-B", *args])


class PageRun:
    """A page that is being run."""

    def __init__(self, page: str) -> None:
        self._page = page
        # As in a program that is run: what is defined in a page is defined in `__main__`.
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._runner = asyncio.Runner()
        self._staying: list[tuple[Command, Program]] = []
        self._code = 0

    def step(self, step: Step) -> None:
        if isinstance(step, File):
            self._write(step)
        elif isinstance(step, Python):
            self._check(step, self._python(step))
        elif isinstance(step, Command):
            self._command(step)

    def stop_workers(self) -> None:
        """Stop what was started, and compare what it said."""
        while self._staying:
            command, run = self._staying.pop()
            code, printed = run.end(stop=True)
            self._check(command, printed)
            if code != 0:
                raise AssertionError(f"{self._at(command)}: it exits with {code}:\n{printed}")

    def _wait_for(self, shown: str, run: Program) -> None:
        """Wait until a program that stays has printed what a page shows before its last `...`."""
        with contextlib.suppress(AssertionError):  # the comparison says what is missing
            eventually(lambda: differs(shown, run.printed()) is None, within=DEADLINE)

    def close(self) -> None:
        for _, run in self._staying:
            sys.stderr.write(run.end(stop=True)[1])
        self._runner.close()

    def _write(self, file: File) -> None:
        path = Path(file.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file.text, "utf-8")
        if path.suffix == ".py":
            sys.modules.pop(".".join(path.with_suffix("").parts), None)
            importlib.invalidate_caches()

    def _python(self, step: Python) -> str:
        where = f"{self._page}:{step.line}"
        told = io.StringIO()
        try:
            # Empty lines in front, so that a traceback names the page's own line.
            code = compile(
                "\n" * step.line + step.code,
                self._page,
                "exec",
                flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT,
            )
            with contextlib.redirect_stdout(told):
                if code.co_flags & inspect.CO_COROUTINE:
                    self._runner.run(eval(code, self._names))
                else:
                    exec(code, self._names)
        except Exception as error:
            kind = type(error)
            name = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
            if step.output is None or f"{name}: " not in step.output:
                sys.stderr.write(told.getvalue())
                raise AssertionError(f"{where}: it raised {name}: {error}") from error
            lines = traceback.format_exception_only(error)
            told.write("".join(lines))
        return told.getvalue()

    def _command(self, step: Command) -> None:
        words = step.words
        if words[0] == "export":
            self._export(words[1].partition("=")[0])
            return
        if words[0] == "echo":
            said = str(self._code) if words[1:] == ["$?"] else " ".join(words[1:])
            self._check(step, f"{said}\n")
            return
        run = Program(words)
        if step.stays:
            self._staying.append((step, run))
            if step.output and step.output.endswith("\n...\n"):
                self._wait_for(step.output, run)
            return
        self._code, printed = run.end()
        self._check(step, printed)
        if self._code and not step.may_fail and "Error: " not in (step.output or ""):
            raise AssertionError(f"{self._at(step)}: it exits with {self._code}:\n{printed}")

    def _export(self, name: str) -> None:
        """Set a variable as a reader does, who copies what `bide dev` has printed."""
        printed = re.compile(rf"export {name}=(.+)")
        *_, (_, run) = self._staying
        (said,) = eventually(lambda: printed.findall(run.printed()), within=DEADLINE)
        (os.environ[name],) = shlex.split(said)

    def _check(self, step: Python | Command, printed: str) -> None:
        if step.output is not None and (difference := differs(step.output, printed)):
            raise AssertionError(f"{self._at(step)}: {difference}")

    def _at(self, step: Step) -> str:
        return f"{self._page}:{step.line}"
