"""Runs one page from top to bottom, in a process and an empty directory of its own.

    BIDE_URL=... python -c "from tests.docs.run_page import main; main('docs/index.md')"

What goes wrong is an exception whose message begins with the page and the line.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import inspect
import io
import os
import signal
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.docs.compare import differs
from tests.docs.pages import ROOT, Command, File, Python, Step, steps

DEADLINE = 60.0


def main(page: str) -> None:
    """Run a page of the repository."""
    sys.dont_write_bytecode = True
    run = PageRun(page)
    try:
        for step in steps((ROOT / page).read_text("utf-8")):
            run.step(step)
        run.stop_workers()
    finally:
        run.close()


class PageRun:
    """A page that is being run."""

    def __init__(self, page: str) -> None:
        self._page = page
        # As in a program that is run: what is defined in a page is defined in `__main__`.
        self._names: dict[str, Any] = {"__name__": "__main__"}
        self._runner = asyncio.Runner()
        self._staying: list[tuple[Command, subprocess.Popen[str]]] = []
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
            command, process = self._staying.pop()
            process.send_signal(signal.SIGTERM)
            printed, _ = process.communicate(timeout=DEADLINE)
            self._check(command, printed)
            if process.returncode != 0:
                raise AssertionError(f"{self._at(command)}: it exits with {process.returncode}")

    def close(self) -> None:
        for _, process in self._staying:
            process.kill()
            sys.stderr.write(process.communicate()[0])
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
        if words[0] == "echo":
            self._check(step, f"{self._code}\n" if words[1:] == ["$?"] else " ".join(words[1:]))
            return
        # A worker that stays is heard on both; of what ends, errors are shown where it fails.
        argv = [sys.executable, *(["-m", "bide"] if words[0] == "bide" else []), *words[1:]]
        environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "100"}
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )
        if step.stays:
            self._staying.append((step, process))
            return
        printed, _ = process.communicate(timeout=DEADLINE)
        self._code = process.returncode
        self._check(step, printed)
        if self._code and "Error: " not in (step.output or ""):
            raise AssertionError(f"{self._at(step)}: it exits with {self._code}:\n{printed}")

    def _check(self, step: Python | Command, printed: str) -> None:
        if step.output is not None and (difference := differs(step.output, printed)):
            raise AssertionError(f"{self._at(step)}: {difference}")

    def _at(self, step: Step) -> str:
        return f"{self._page}:{step.line}"
