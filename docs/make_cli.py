"""Writes the generated regions of `docs/cli.md`: purpose, usage and options of each command.

A region names a command: `<!-- generated: bide jobs ls -->`. What the command line says of itself
with `--help` is where its text comes from.

`make docs` runs it; `make check` runs it with `--check`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import regions

from bide.cli.main import group

PAGE: Final = regions.DOCS / "cli.md"
SHARED: Final = ("--url", "--prefix", "--mask", "--json")
"""Options that the page explains once; `--help` too, which no section names."""
ENDLESS: Final = 1_000_000_000

_DEFAULT: Final = re.compile(r"\s*\[default: (.*)\]$", re.DOTALL)
_CODE: Final = re.compile(r"`[^`]+`|(?<!\w)'[^']+'(?!\w)|--[a-z][\w-]*|\$[A-Z_]+|\[tool[\w.]+\]")


def make(page: Path, words: str) -> str:
    """Make the region of a command."""
    return "\n".join(_section(words))


def _section(words: str) -> Iterator[str]:
    context = click.Context(group, info_name="bide")
    command: click.Command = group
    for word in words.split()[1:]:
        assert isinstance(command, click.Group)
        command = command.commands[word]
        context = click.Context(command, info_name=word, parent=context)
    yield _text((command.help or "").partition("\n\n")[0])
    yield ""
    yield from ("```text", " ".join([words, *command.collect_usage_pieces(context)]), "```", "")
    options = [each for each in command.params if isinstance(each, click.Option)]
    own = [each for each in options if not {*SHARED} & {*each.opts}]
    shared = [name for name in SHARED if any(name in each.opts for each in options)]
    if own:
        yield from ("| option | default | meaning |", "|---|---|---|")
        yield from map(_row, own)
        yield ""
    also = ", ".join(f"`{name}`" for name in shared)
    if also:
        yield f"{'Also' if own else 'Options:'} [{also}](#options-of-all-commands)."


def _row(option: click.Option) -> str:
    help, default = option.help or "", ""
    if found := _DEFAULT.search(help):
        help, default = help[: found.start()], found[1]
    elif isinstance(option.default, str | int | float) and not option.is_flag:
        default = str(option.default)
    names = ", ".join(f"`{name}`" for name in sorted(option.opts, key=len, reverse=True))
    value = option.metavar if not option.is_flag else None
    if value is None and not option.is_flag and not isinstance(option.type, click.Choice):
        is_number = isinstance(option.type, click.types.IntParamType | click.types.FloatParamType)
        value = "N" if is_number else option.type.name
    cells = (
        f"{names} {value.upper()}" if value else names,
        _text(default),
        f"{_text(help)} {'' if option.metavar else _bounds(option.type)}".strip(),
    )
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _bounds(kind: Any) -> str:
    """The values of an option whose help does not say them."""
    if isinstance(kind, click.Choice):
        return f"One of {', '.join(f'`{choice}`' for choice in kind.choices)}."
    if not isinstance(kind, click.IntRange | click.FloatRange):
        return ""
    if kind.max is None or kind.max >= ENDLESS:
        least = "More than" if kind.min_open else "At least"
        return f"{least} {kind.min}." if kind.min or kind.min_open else ""
    return f"From {kind.min} to {kind.max:,}."


def _text(help: str) -> str:
    """Make Markdown of a help text: what one types becomes code."""
    return _CODE.sub(lambda found: f"`{found[0].strip(chr(39) + '`')}`", " ".join(help.split()))


if __name__ == "__main__":
    regions.main([PAGE], make)
