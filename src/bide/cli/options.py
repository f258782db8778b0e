"""Options that commands share."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from bide.client.config import LOG_FORMATS
from bide.errors import UsageError
from bide.views.site import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])


def url_option(function: F) -> F:
    """`--url`; also given before the command's name, where the nearer one wins."""
    return click.option(
        "-u",
        "--url",
        metavar="URL",
        callback=_inherit,
        help="The server; else $BIDE_URL, else [tool.bide], else redis://127.0.0.1:6379/0.",
    )(function)


def server_options(function: F) -> F:
    """`--url` and `--prefix`; also given before the command's name, where the nearer one wins."""
    prefix = click.option(
        "--prefix",
        metavar="PREFIX",
        callback=_inherit,
        help="Of all keys; else $BIDE_PREFIX, else [tool.bide], else bide.",
    )
    return url_option(prefix(function))


def json_option(function: F) -> F:
    """`--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(function)


def log_options(function: F) -> F:
    """`--verbose` and `--log-format`."""
    verbose = click.option("-v", "--verbose", is_flag=True, help="Log every job.")
    log_format = click.option(
        "--log-format",
        type=click.Choice(LOG_FORMATS),
        help="For people, as logfmt, or as JSON, a line each; else $BIDE_LOG_FORMAT.  "
        "[default: text]",
    )
    return verbose(log_format(function))


def queues_option(help: str) -> Callable[[F], F]:
    """`--queue`, any number of times; a shell completes the names."""
    return click.option(
        "-q",
        "--queue",
        "queues",
        multiple=True,
        metavar="QUEUE",
        help=help,
        shell_complete=complete_queues,
    )


def _inherit(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The value given here, else the one given to a group above."""
    parent = ctx.parent
    while value is None and parent is not None and param.name is not None:
        value = parent.params.get(param.name)
        parent = parent.parent
    return value


def complete_queues(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """The queues that begin so; none where the server does not answer at once."""
    from bide.cli.server import queue_names

    url, prefix = ctx.params.get("url"), ctx.params.get("prefix")
    return [CompletionItem(n) for n in queue_names(url, prefix) if n.startswith(incomplete)]


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


def read_at(text: str, option: str = "--at") -> datetime:
    """A moment as typed, in ISO 8601 with a time zone.

    Raises:
        UsageError: it is not one.
    """
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option} {text!r} is not a moment; write it as 2030-01-31T09:00:00+01:00."
        ) from None
    if at.utcoffset() is None:
        raise UsageError(
            f"{option} {text} has no time zone, so it names no one moment; "
            f"write {at.isoformat()}Z or {at.isoformat()}+01:00."
        )
    return at


def read_address(text: str, option: str = "--health-port") -> tuple[str, int]:
    """A port, or an interface and a port, as typed: `8080`, `127.0.0.1:8080`, `[::1]:8080`.

    Raises:
        UsageError: it is neither.
    """
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (port.isdecimal() and int(port) < 65_536) or (colon and not host):
        raise UsageError(f"{option} {text!r} is not a port; write it as 8080 or 127.0.0.1:8080.")
    return host or "0.0.0.0", int(port)


class PipeClosed(Exception):
    """The reader of our output has closed it, as in `bide jobs ls | head`."""


class CommandGroup(click.Group):
    """A group whose commands are listed in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order added, so that related commands stand together."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help if there are no arguments, and exit with 0."""
        if not args and not ctx.resilient_parsing and not self.invoke_without_command:
            click.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is named.

        Raises:
            click.UsageError: there is no such command; the message names the nearest.
        """
        if args and self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            name = args[0]
            if name.startswith("-"):
                raise click.NoSuchOption(name, ctx=ctx)
            ctx.fail(f"There is no command {name!r}{self._nearest(name)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command.

        Raises:
            PipeClosed: the pipe is closed; click would exit with 1 on a `BrokenPipeError`.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise PipeClosed from None

    def _nearest(self, name: str) -> str:
        return did_you_mean(name, self.commands) or f"; there are {', '.join(self.commands)}."
