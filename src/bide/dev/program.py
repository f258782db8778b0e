"""What is to be run: a file or a module, as it is typed."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from bide.errors import UsageError


class Program(NamedTuple):
    """The module that holds an application's tasks."""

    module: str
    root: Path
    """The directory that it is imported from."""


def find_program(text: str, here: Path) -> Program:
    """From `app.py`, `shop/tasks.py` or `shop.tasks` to the module.

    A file of a package is imported as one: from the directory above the topmost `__init__.py`.

    Args:
        text: as typed.
        here: the directory one stands in.

    Raises:
        UsageError: there is no such file, or it cannot be a module.
    """
    is_path = text.endswith(".py") or "/" in text
    if not is_path and all(part.isidentifier() for part in text.split(".")):
        return Program(text, here)
    file = here / text
    if not file.exists():
        raise UsageError(
            f"There is no file {text!r} here; give one such as app.py, or a module such as "
            "shop.tasks."
        )
    file = file.resolve()
    if file.is_dir() and not (file / "__init__.py").exists():
        raise UsageError(f"{text!r} is a directory; name the file in it that has your tasks.")
    names = [] if file.is_dir() or file.name == "__init__.py" else [file.stem]
    root = file if file.is_dir() else file.parent
    while (root / "__init__.py").exists():
        names.insert(0, root.name)
        root = root.parent
    if file.is_file() and file.suffix != ".py":
        raise UsageError(f"{text!r} is no Python file; name the one that has your tasks.")
    for name in names:
        if not name.isidentifier():
            raise UsageError(
                f"{text!r} cannot be imported, because {name!r} is no name of a module; rename it, "
                f"for instance to {name.replace('-', '_')!r}."
            )
    return Program(".".join(names), root)
