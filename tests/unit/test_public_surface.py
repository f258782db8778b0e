"""What bide promises to users by name: a change of it is a decision, and changes this list.

`python -m tests.unit.test_public_surface > tests/unit/public_surface.txt` writes the list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

import bide
from bide.cli.main import group
from bide.client import config

LIST = Path(__file__).with_name("public_surface.txt")
SOURCES = Path(bide.__file__).parent


def _commands(command: click.Command, path: str) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name, inner in sorted(command.commands.items()):
            yield from _commands(inner, f"{path} {name}")
    if not isinstance(command, click.Group) or command.invoke_without_command:
        parameters = []
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                parameters.append("/".join((*parameter.opts, *parameter.secondary_opts)))
            else:
                parameters.append((parameter.name or "").upper())
        yield " ".join((path, *sorted(parameters)))


def _variables() -> set[str]:
    texts = (file.read_text("utf-8") for file in SOURCES.rglob("*.py"))
    return {name for text in texts for name in re.findall(r"\bBIDE_[A-Z]+(?:_[A-Z]+)*\b", text)}


def surface() -> str:
    """The public names, a part for each kind."""
    parts = {
        "names of bide": sorted(bide.__all__),
        "commands and their options": [*_commands(group, "bide")],
        "environment variables": sorted(_variables()),
        "settings of [tool.bide]": sorted(config.keys_of(config.Settings)),
        "settings of [tool.bide.worker]": sorted(config.keys_of(config.WorkerSettings)),
    }
    return "\n\n".join("\n".join((f"# {title}", *lines)) for title, lines in parts.items()) + "\n"


def test_public_names_are_those_that_were_decided() -> None:
    assert surface() == LIST.read_text("utf-8"), "is each change meant? then write the list again"


if __name__ == "__main__":
    print(surface(), end="")
