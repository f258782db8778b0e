"""True servers whose clock a test sets, with a library before the system's (`skew/server.c`)."""

from __future__ import annotations

import mmap
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent / "skew" / "server.c"


class Clock:
    """The clock of one server; `binary` is the program to start."""

    def __init__(self, directory: Path, name: str, server: str) -> None:
        library = directory / "skew.so"
        if not library.exists():
            compiler = shutil.which("cc")
            if compiler is None:
                pytest.skip("no C compiler (cc), with which the wrong clock is made")
            subprocess.run(
                [compiler, "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"],
                check=True,
                timeout=60,
            )
        shift = directory / f"{name}.shift"
        shift.write_bytes(bytes(8))
        with shift.open("r+b") as file:
            self._shift = mmap.mmap(file.fileno(), 8)
        program = directory / name
        program.write_text(
            f"#!/bin/sh\nexport BIDE_TEST_SKEW_FILE={shift} LD_PRELOAD={library}\n"
            f'exec {server} "$@"\n'
        )
        program.chmod(0o700)
        self.binary = str(program)

    def set(self, seconds: float) -> None:
        """Have the server be wrong by so much, from now on."""
        self._shift[:8] = round(seconds * 1e6).to_bytes(8, "little", signed=True)
