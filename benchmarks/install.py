"""Environments of their own for the peers, in `build/peers`, made when they are first needed."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

from benchmarks.lab import ROOT

PEERS = ROOT / "benchmarks" / "peers"
ENVIRONMENTS = ROOT / "build" / "peers"
LONGEST_S = 300.0
_METADATA = re.compile(r"^# /// script\n(.*?)^# ///$", re.MULTILINE | re.DOTALL)


class Installed(NamedTuple):
    """How a peer's producer is started, and in which environment."""

    command: list[str]
    environ: dict[str, str]


def install(name: str) -> Installed:
    """Make the environment that a peer's file asks for, unless it is there.

    Raises:
        RuntimeError: it cannot be made.
    """
    script = PEERS / f"{name}.mjs"
    if script.exists():
        return Installed(["node", str(script)], {"BENCH_MODULES": str(_install_node(script))})
    python = install_python(PEERS / f"{name}.py")
    path = f"{python.parent}{os.pathsep}{os.environ['PATH']}"
    return Installed([str(python), "-m", "benchmarks.peers.common", name], {"PATH": path})


def install_python(file: Path) -> Path:
    """The Python of the environment; ours, if the file asks for none."""
    metadata = _METADATA.search(file.read_text())
    if metadata is None:
        return Path(sys.executable)
    wanted = tomllib.loads(re.sub(r"^# ?", "", metadata[1], flags=re.MULTILINE))["dependencies"]
    directory = ENVIRONMENTS / file.stem
    python = directory / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "install"]
    commands = (
        [sys.executable, "-m", "venv", "--clear", "--without-pip", str(directory)],
        [*pip, "--disable-pip-version-check", *wanted],
    )
    _make(directory, wanted, sys.version, *commands)
    return python


def _install_node(file: Path) -> Path:
    """Where the packages are that the file asks for in its first line."""
    with file.open() as lines:
        wanted = lines.readline().removeprefix("// npm:").split()
    directory = ENVIRONMENTS / file.stem
    npm = ["npm", "install", "--silent", "--no-audit", "--prefix", str(directory), *wanted]
    _make(directory, wanted, "node", npm)
    return directory


def _make(directory: Path, wanted: list[str], version: str, *commands: list[str]) -> None:
    stamp = directory / "made"
    made = hashlib.sha256(repr((version, str(directory), wanted)).encode()).hexdigest()
    if stamp.exists() and stamp.read_text() == made:
        return
    print(f"installing {', '.join(wanted)} in {directory.relative_to(ROOT)}", file=sys.stderr)
    directory.mkdir(parents=True, exist_ok=True)
    for command in commands:
        try:
            subprocess.run(command, check=True, capture_output=True, text=True, timeout=LONGEST_S)
        except FileNotFoundError:
            raise RuntimeError(f"it cannot be installed: there is no {command[0]}") from None
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"it was not installed within {LONGEST_S:g} s") from None
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"it cannot be installed: {error.stderr.strip()}") from None
    stamp.write_text(made)
