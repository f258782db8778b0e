"""`bide outbox`: rows that an outbox has not sent, and the relay that sends them."""

from __future__ import annotations

import logging
import signal
import threading
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click

from bide import logs
from bide.cli.options import (
    CommandGroup,
    flag,
    import_from_here,
    json_option,
    limit_option,
    log_options,
    yes_option,
)
from bide.cli.screen import Cell, Column, confirmed, echo, show
from bide.client.config import settings
from bide.errors import UsageError
from bide.logs import count
from bide.model.ids import short_id
from bide.views.params import NotFound, moment_json, relative
from bide.worker.relay import OutboxLike, OutboxRow, explained, load_outbox

_log = logs.Log("bide.outbox")

_MOST: Final = 1_000


@click.group(cls=CommandGroup)
def outbox() -> None:
    """List, retry and delete rows of an outbox, and send what was left.

    OUTBOX is the module and the variable that hold it: shop.db:outbox. With `manage.py bide`, it
    may be left out: then it is the outbox of Django's database `default`.
    """


class _OutboxArgument(click.Argument):
    """An argument that the usage shows as optional if there is a default outbox."""

    def get_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Return its form in the usage."""
        return ["OUTBOX" if ctx.lookup_default("path") is None else "[OUTBOX]"]


_outbox: Final = click.argument("path", metavar="OUTBOX", cls=_OutboxArgument)
_ROW: Final = click.IntRange(1, 2**63 - 1)
_rows: Final = click.argument("rows", nargs=-1, metavar="[ROW]...", type=_ROW)


def _named(path: str, rows: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Read a number in place of the outbox as a row, if there is a default outbox."""
    otherwise = click.get_current_context().lookup_default("path")
    if otherwise is not None and path.isdecimal():
        return str(otherwise), (_ROW(path), *rows)
    return path, rows


def _load(path: str) -> OutboxLike:
    import_from_here()
    return load_outbox(path)


@outbox.command("relay")
@_outbox
@flag("--burst", "Stop when no row can be sent.")
@log_options
def relay(path: str, burst: bool, verbose: bool, log_format: str | None) -> None:
    """Send the rows that were left, until Ctrl-C or SIGTERM.

    `bide worker --outbox` does the same beside a worker. Several relays share the rows.
    """
    logs.setup(log_format or settings().log_format, logging.DEBUG if verbose else None)
    found, stop = _load(path), threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    if not burst:
        _log.info("the relay of %s runs", path)
    with explained():
        sent = found.relay(burst=burst, stop=stop)
    if burst:
        echo(f"{count(sent, 'row')} sent.")
    else:
        _log.info("the relay of %s stopped after %s", path, count(sent, "row"))


@outbox.command("ls")
@_outbox
@flag("--refused", "List only rows that the server has refused for good.")
@limit_option("rows to list", 50, _MOST)
@json_option
def ls(path: str, refused: bool, limit: int, as_json: bool) -> None:
    """List rows that have not been sent, the oldest first."""
    with explained():
        found = _load(path).list_rows(limit, refused=refused)
    show(
        as_json,
        lambda: {"rows": [_row_report(row) for row in found]},
        _COLUMNS,
        found,
        "All rows have been sent.",
    )


@outbox.command("retry")
@_outbox
@_rows
@flag("--all everything", "Retry all refused rows.")
def retry(path: str, rows: tuple[int, ...], everything: bool) -> None:
    """Send refused rows again: those of these numbers, or all."""
    path, rows = _named(path, rows)
    if bool(rows) == everything:
        raise UsageError("Name the rows to retry by their numbers, or give --all.")
    with explained():
        done = _load(path).retry_rows(None if everything else rows)
    _report(done, "will be sent again", rows, "refused row")


@outbox.command("delete")
@_outbox
@_rows
@yes_option
def delete(path: str, rows: tuple[int, ...], yes: bool) -> None:
    """Delete rows without sending them.

    Their jobs do not change, although the transactions were committed.
    """
    path, rows = _named(path, rows)
    if not rows:
        raise UsageError("Name the rows to delete by their numbers; `bide outbox ls` shows them.")
    found = _load(path)
    if not confirmed(f"Delete {count(len(rows), 'row')} without sending?", yes):
        return
    with explained():
        done = found.delete_rows(rows)
    _report(done, "deleted", rows, "row")


def _report(done: int, how: str, rows: Sequence[int], what: str) -> None:
    """Print the number of changed rows; raise if named rows do not exist."""
    if done or not rows:
        echo(f"{count(done, 'row')} {how}.")
    numbers = [str(row) for row in dict.fromkeys(rows)]
    if len(numbers) > done:
        some = f"{len(numbers) - done} of " if done else ""
        raise NotFound(
            f"There is no {what} of {some}the numbers {', '.join(numbers)}; "
            "`bide outbox ls` lists them."
        )


def _age(row: OutboxRow) -> str:
    return relative((row.written - datetime.now(UTC)).total_seconds())


_COLUMNS: Final = [
    Column("row", lambda row: str(row.number), right=True),
    Column("written", _age),
    Column("queue", lambda row: row.queue, cut="end"),
    Column("change", lambda row: row.verb),
    Column("job", lambda row: short_id(row.job_id)),
    Column("tries", lambda row: str(row.tries), right=True),
    Column("state", lambda row: Cell("refused", "red") if row.refused else Cell("waiting")),
    Column("error", lambda row: row.error or "", cut="end"),
]


def _row_report(row: OutboxRow) -> dict[str, Any]:
    return {**row._asdict(), "written": moment_json(row.written)}
