"""The output of commands: tables and lines for people, JSON for programs.

At a terminal a table fits its width: some columns are cut, ids never. Elsewhere nothing is cut or
coloured. All text from the server passes through `printable`, so text in a job can neither move the
cursor nor forge a line.

This module formats tables itself: with rich's tables, 10,000 jobs take over five seconds.
"""

from __future__ import annotations

import json
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Literal, NamedTuple

import click
from rich.cells import cell_len, set_cell_size
from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from bide.errors import UsageError
from bide.logs import plain, printable
from bide.model.job import State
from bide.queue.job_view import error_line
from bide.queue.select import FoundJob, Mask, masked_error
from bide.views.job import REMARK, cut, data_line, given_description

_SGR: Final = {
    "dim": "2",
    "bold": "1",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}
Style = Literal["", "dim", "bold", "red", "green", "yellow", "cyan"]

STATE_STYLE: Final[dict[str, Style]] = {
    "active": "cyan",
    "waiting": "yellow",
    "completed": "green",
    "failed": "red",
    "cancelled": "dim",
}

_GAP: Final = "  "
_LEAST: Final = 8
"""Minimum width of a cut column, in cells."""
_A_WHILE: Final = 0.5
_LONGEST: Final = 2_000
_WIDEST: Final = 40
"""Width, in cells, above which a value of an uncut column widens only its own line."""


class Column(NamedTuple):
    """A column of a table."""

    title: str
    value: Callable[[Any], str | Cell]
    """Returns the value of the column for the object of a row."""
    right: bool = False
    cut: Literal["", "end", "start"] = ""
    """The end at which a value is cut if the terminal is too narrow; empty for neither."""
    spare: bool = False
    """Whether it is left out if the terminal is too narrow; the last such column goes first."""


class Cell(NamedTuple):
    """A coloured value."""

    text: str
    style: Style = ""


def echo(text: str = "", style: Style = "") -> None:
    """Print a line; control characters in it are escaped."""
    _print(_paint(printable(text), style, _colours()))


def echo_json(value: Any) -> None:
    """Print one line of JSON, in ASCII, which is safe in any terminal and encoding."""
    _print(json.dumps(plain(value)))


def table(columns: Sequence[Column], things: Iterable[Any]) -> None:
    """Print a row for each object, within the width of the terminal if there is one."""
    cells = [[_cell(column.value(thing)) for column in columns] for thing in things]
    widths = [
        max([cell_len(column.title), *(w for w in each if column.cut or w <= _WIDEST)])
        for i, column in enumerate(columns)
        for each in [[cell_len(row[i].text) for row in cells]]
    ]
    room = Console().width if at_terminal() else None
    kept = list(range(len(columns)))
    if room is not None:
        kept = _spare(widths, columns, room)
    shown = [columns[i] for i in kept]
    widths = [widths[i] for i in kept]
    if room is not None:
        _shrink(widths, shown, room)
    colours = _colours()
    titles = [Cell(column.title, "dim") for column in columns]
    lines = (_line([row[i] for i in kept], shown, widths, colours) for row in [titles, *cells])
    _print("\n".join(lines))


def show(
    as_json: bool,
    report: Callable[[], Any],
    columns: Sequence[Column],
    things: Sequence[Any],
    empty: str,
) -> None:
    """List objects as JSON or as a table; without objects, print a sentence."""
    if as_json:
        echo_json(report())
    elif things:
        table(columns, things)
    else:
        aside(empty)


def state_columns(states: Sequence[str], counts: Callable[[Any], Any]) -> list[Column]:
    """Return columns with the number of jobs in each state, in its colour."""

    def number(state: str, thing: Any) -> Cell:
        n = getattr(counts(thing), state)
        return Cell(f"{n:,}", STATE_STYLE.get(state, "") if n else "dim")

    return [Column(state, partial(number, state), right=True) for state in states]


def facts(pairs: Iterable[tuple[str, str | Cell]]) -> None:
    """Print names and values, one per line."""
    colours = _colours()
    known = [(name, _cell(value)) for name, value in pairs]
    width = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        _print(f"{_paint(name.ljust(width), 'dim', colours)}{_GAP}{_painted(value, colours)}")


def hanging(head: Sequence[str | Cell], text: str, style: Style = "") -> None:
    """Print a head and its text; at a terminal, the wrapped text stays beside the head."""
    colours = _colours()
    cells = [_cell(value) for value in head]
    indent = sum(cell_len(cell.text) + len(_GAP) for cell in cells)
    first = "".join(_painted(cell, colours) + _GAP for cell in cells)
    text = printable(text)
    room = max(20, Console().width - indent)
    lines = textwrap.wrap(text, room) if at_terminal() else [text]
    _print(first + ("\n" + " " * indent).join(_paint(line, style, colours) for line in lines))


def aside(text: str) -> None:
    """Print a message for people on standard error, so that it is not piped."""
    _print(_paint(printable(text), "dim", _colours(stderr=True)), err=True)


@contextmanager
def bar(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Show a progress bar, at a terminal and if it takes long; call the result with steps."""
    if not sys.stderr.isatty():
        yield lambda steps: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    progress = Progress(*columns, console=Console(stderr=True), transient=True)
    task = progress.add_task(what, total=total)
    begun = time.monotonic()

    def step(steps: int) -> None:
        progress.advance(task, steps)
        if not progress.live.is_started and time.monotonic() - begun > _A_WHILE:
            progress.start()

    try:
        yield step
    finally:
        if progress.live.is_started:
            progress.stop()


def shortened(text: str) -> str:
    """Cut a text that is too long to read; it may be a megabyte."""
    return cut(text, _LONGEST, f"… ({len(text):,} characters; --json has them all)")


def at_terminal() -> bool:
    """Whether standard output is a terminal; for rich, FORCE_COLOR makes a pipe one."""
    return sys.stdout.isatty()


def draw(picture: RenderableType) -> None:
    """Print a picture of rich; without a terminal, nothing in it is cut."""
    console = Console(width=None if at_terminal() else _LONGEST)
    with console.capture() as drawn:
        console.print(picture)
    _print(drawn.get().rstrip("\n"))


def _print(text: str, err: bool = False) -> None:
    """Print text whose colours and escapes are decided already."""
    click.echo(text, err=err, color=True)


def _colours(stderr: bool = False) -> bool:
    console = Console(stderr=stderr)
    return console.color_system is not None and not console.no_color


def _paint(text: str, style: Style, colours: bool) -> str:
    return f"\x1b[{_SGR[style]}m{text}\x1b[0m" if colours and style and text else text


def _painted(cell: Cell, colours: bool) -> str:
    return _paint(cell.text, cell.style, colours)


def _cell(value: str | Cell) -> Cell:
    cell = value if isinstance(value, Cell) else Cell(value)
    return Cell(printable(cell.text), cell.style)


def _needed(widths: Sequence[int]) -> int:
    return sum(widths) + len(_GAP) * (len(widths) - 1)


def _spare(widths: list[int], columns: Sequence[Column], room: int) -> list[int]:
    kept = list(range(len(columns)))
    for i in reversed(range(len(columns))):
        if columns[i].spare and _needed([widths[j] for j in kept]) > room:
            kept.remove(i)
    return kept


def _shrink(widths: list[int], columns: Sequence[Column], room: int) -> None:
    """Shrink the widest cut column until all columns fit, or none can shrink further."""
    excess = _needed(widths) - room
    while excess > 0:
        givers = [i for i, c in enumerate(columns) if c.cut and widths[i] > _LEAST]
        if not givers:
            return
        widest = max(givers, key=lambda i: widths[i])
        others = [widths[i] for i in givers if i != widest]
        step = max(1, min(excess, widths[widest] - max([_LEAST, *others])))
        widths[widest] -= step
        excess -= step


def _line(
    row: Sequence[Cell], columns: Sequence[Column], widths: Sequence[int], colours: bool
) -> str:
    parts = []
    for cell, column, width in zip(row, columns, widths, strict=True):
        text = _fitted(cell.text, column, width)
        pad = " " * (width - cell_len(text))
        shown = _paint(text, cell.style, colours)
        parts.append(pad + shown if column.right else shown + pad)
    return _GAP.join(parts).rstrip()


def _fitted(text: str, column: Column, width: int) -> str:
    excess = cell_len(text) - width
    if excess <= 0 or not column.cut:
        return text
    if column.cut == "end":
        return set_cell_size(text, width - 1).rstrip() + "…"
    return "…" + set_cell_size(text[::-1], width - 1).rstrip()[::-1]


def confirmed(question: str, yes: bool) -> bool:
    """Whether to continue: `--yes` was given, or the user at the terminal agrees."""
    if yes:
        return True
    question = printable(question)
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(f"{question} There is no terminal to ask at; add --yes to continue.")
    try:
        agreed = click.confirm(question, default=False, err=True)
    except click.Abort as abort:
        if isinstance(abort.__cause__ or abort.__context__, KeyboardInterrupt):
            raise
        agreed = False  # end of input
    if not agreed:
        click.echo("Nothing was changed.", err=True)
    return agreed


def state_cell(state: State) -> Cell:
    """Return the state in its colour."""
    return Cell(state.value, STATE_STYLE.get(state.value, ""))


def remark(mask: Mask, seen: FoundJob) -> Cell:
    """Return the most useful remark: progress, last error, data or description."""
    notes = seen.snapshot.notes
    if seen.snapshot.asked:
        return Cell("asked to stop", "yellow")
    if seen.state == State.ACTIVE and notes.progress:
        return Cell(f"{notes.progress.fraction:.0%} {notes.progress.text}".rstrip())
    error = masked_error(notes.error, seen.snapshot.task, mask)
    if error and seen.state != State.COMPLETED:
        attempt = seen.snapshot.attempt
        line = f"{f'{attempt} attempts, ' if attempt > 1 else ''}{error_line(error)}"
        return Cell(cut(line, REMARK), "red" if seen.state == State.FAILED else "dim")
    if seen.snapshot.is_item:
        return Cell(data_line(seen, mask))
    return Cell(given_description(seen), "dim")
