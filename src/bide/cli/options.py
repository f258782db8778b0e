"""Options that commands share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click

from bide.errors import UsageError

F = TypeVar("F", bound=Callable[..., Any])


def server_options(function: F) -> F:
    """`--url` and `--prefix`."""
    url = click.option(
        "-u",
        "--url",
        metavar="URL",
        help="The server; else $BIDE_URL, else redis://127.0.0.1:6379/0.",
    )
    prefix = click.option("--prefix", help="Of all keys; else $BIDE_PREFIX, else bide.")
    return url(prefix(function))


def json_option(function: F) -> F:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def import_from_here() -> None:
    """Let modules of the directory one stands in be imported, as `python -m` does."""
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def read_value(text: str) -> Any:
    """An argument as typed: JSON where it is JSON (`42`, `true`, `[1]`, `"42"`), else text."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return text


def _no_number(name: str) -> None:
    """Python's reader takes NaN and Infinity, which JSON has not: they are text."""
    raise ValueError(name)


def read_at(text: str) -> datetime:
    """A moment as typed, in ISO 8601 with a time zone.

    Raises:
        UsageError: it is not one.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"--at {text!r} is not a moment; write it as 2030-01-31T09:00:00+01:00."
        ) from None
    if at.utcoffset() is None:
        raise UsageError(
            f"--at {text} has no time zone, so it names no one moment; "
            f"write {at.isoformat()}Z or {at.isoformat()}+01:00."
        )
    return at
