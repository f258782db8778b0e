"""Which module a Python file is: the file of the program that runs, or a file that a person names.

A task that a program defines itself is in the module `__main__`, which no worker can import. A
worker imports the program's file as a module instead, so names that are stored name that module.
Its name is the one that `import` would need: a file of a package is imported from the directory
above the topmost `__init__.py`.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final, NamedTuple

MAIN: Final = ("__main__", "__mp_main__")
"""The module of a program; the second is its name in processes of `multiprocessing`."""


class Program(NamedTuple):
    """A module, and where it is."""

    module: str
    """Its name; each part should be an identifier, or it cannot be imported."""
    root: str
    """The directory that it is imported from."""


def program_of(file: str) -> Program:
    """Return the module of a Python file."""
    root, name = os.path.split(os.path.realpath(file))
    stem = name.removesuffix(".py")
    names = [] if stem == "__init__" else [stem]
    while os.path.exists(os.path.join(root, "__init__.py")) and root != os.path.dirname(root):
        root, package = os.path.split(root)
        names.insert(0, package)
    return Program(".".join(names), root)


def module_of(defined: Any) -> str | None:
    """Return the module from which a worker imports a function or a class; None if there is none.

    None for a class or a function that was typed, also in a shell that has run the program's file,
    and if the file cannot be imported.
    """
    name: str | None = getattr(defined, "__module__", None)
    if name not in MAIN:
        return name
    program = sys.modules.get(name)
    file: str | None = getattr(program, "__file__", None)
    if file is None or not file.endswith(".py"):
        return None
    code = getattr(defined, "__code__", None)
    if code is not None and os.path.realpath(code.co_filename) != os.path.realpath(file):
        return None
    spec = getattr(program, "__spec__", None)
    module: str = program_of(file).module if spec is None else spec.name
    *_, last = parts = module.split(".")
    return module if last != "__main__" and all(part.isidentifier() for part in parts) else None
