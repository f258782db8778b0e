"""Groups of commands: a mistyped name gets a suggestion, a closed pipe ends quietly."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any

import click


class PipeClosed(Exception):
    """Whoever read our output has gone: `bide jobs ls | head`."""


class Group(click.Group):
    """A group whose commands are listed in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order added: related commands stand together."""
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Show the help when nothing is said; that is no error."""
        if not args and not ctx.resilient_parsing and not self.invoke_without_command:
            click.echo(ctx.get_help())
            ctx.exit()
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is named.

        Raises:
            click.UsageError: there is none; the message has the nearest.
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
            PipeClosed: so that the library does not take it for an error of ours.
        """
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise PipeClosed from None

    def _nearest(self, name: str) -> str:
        return did_you_mean(name, self.commands) or f"; there are {', '.join(self.commands)}."


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """The end of a sentence: `; did you mean 'jobs'?`, or nothing where nothing is near."""
    near = get_close_matches(name, list(names), n=3)
    return f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
