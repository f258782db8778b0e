"""Asking before what cannot be taken back."""

from __future__ import annotations

import click

from bide.cli.screen import attended
from bide.errors import UsageError
from bide.logs import printable


def confirmed(question: str, yes: bool) -> bool:
    """Whether to go on: `--yes` was given, or somebody at the terminal says so.

    Raises:
        UsageError: nobody can be asked.
    """
    if yes:
        return True
    question = printable(question)
    if not attended():
        raise UsageError(f"{question} Nobody is at a terminal to be asked; add --yes to go on.")
    try:
        agreed = click.confirm(question, default=False, err=True)
    except click.Abort as abort:
        if isinstance(abort.__cause__ or abort.__context__, KeyboardInterrupt):
            raise
        agreed = False  # end of input
    if not agreed:
        click.echo("Nothing was changed.", err=True)
    return agreed
