"""Running a mutant: its one test, in a process of its own, against a copy of the package.

The copy stands before the installed package on `PYTHONPATH`, so that workers and other programs
that the test starts are of it, too.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal
from xml.etree import ElementTree

from tests.mutation.mutant import ROOT, SOURCE, Mutant

LONGEST: Final = 840.0
"""Seconds that a test may take, however busy the machine is; less than after what pytest itself
ends one that hangs."""

Fate = Literal["killed", "survived", "hung", "broken"]


def passes(tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run tests against the package as it is."""
    return _pytest(tests, SOURCE, None)


def run(mutant: Mutant) -> Fate:
    """Run the mutant's test against the mutant.

    Returns:
        `killed` if the test failed, or what is looked at when it is over; `survived` if it passed;
        `hung` if it did not end; `broken` if it could not even be run, or what it needs could not
        be set up (a server that did not start, say), which shows nothing.

    Raises:
        Unapplied: the mutant cannot be made.
    """
    with tempfile.TemporaryDirectory(prefix="bide-mutant-") as name:
        copy = Path(name)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(SOURCE, copy, ignore=ignored, dirs_exist_ok=True)
        file = copy / "bide" / mutant.file
        file.write_text(mutant.apply(file.read_text("utf-8")), "utf-8")
        report = copy / "report.xml"
        try:
            done = _pytest([f"--junitxml={report}", mutant.test], copy, LONGEST)
        except subprocess.TimeoutExpired:
            return "hung"
        if done.returncode == 0:
            return "survived"
        has_failed = done.returncode == 1 and report.exists() and _has_failed(report)
    return "killed" if has_failed else "broken"


def _has_failed(report: Path) -> bool:
    """Whether a test did, or what is looked at behind it; not what was to be set up before it."""
    cases = ElementTree.parse(report).iter("testcase")
    failures = [each for case in cases for each in case if each.tag in ("failure", "error")]
    return any(not each.get("message", "").startswith("failed on setup") for each in failures)


def _pytest(
    tests: Sequence[str], source: Path, timeout: float | None
) -> subprocess.CompletedProcess[str]:
    plugins = [f"-p{name}" for name in ("no:cacheprovider", "anyio", "_bide_pytest")]
    command = [sys.executable, "-m", "pytest", "-qx", "--tb=line", *plugins, *tests]
    env = os.environ | {
        "PYTHONPATH": str(source),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",  # to load them all takes longer than most tests
        "BIDE_TEST_SERVERS": "valkey",  # what one server shows, no other needs to
    }
    # Into a file: a process that outlives the run would hold a pipe open, as if it still ran.
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output:
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code = process.wait(timeout)
        finally:
            with suppress(ProcessLookupError):  # with it go the workers that a mutant has left
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return subprocess.CompletedProcess(command, code, output.read(), "")
