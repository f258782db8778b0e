"""A fresh Python that goes on as this one would: its modules, its switches."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

_PROGRAM: Final = """
import sys
path = sys.argv[1].split("\\n")
sys.path += path
from {module} import {name}
sys.path[:] = path
{name}()
"""


def fresh_python(main: str, *args: str) -> list[str]:
    """The command line of a Python that calls a function, given as `module:name`.

    It looks for modules where this one does; but what it needs itself it takes from Python first,
    so that a `queue.py` in the user's directory is not taken for Python's own (for which `-P` is,
    too). Arguments come last.
    """
    module, _, name = main.partition(":")
    switches: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    program = _PROGRAM.format(module=module, name=name)
    return [sys.executable, *switches, "-P", "-c", program, "\n".join(sys.path), *args]
