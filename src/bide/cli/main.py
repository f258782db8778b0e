"""The command `bide` itself: its group, and how errors leave it."""

from __future__ import annotations

import os
import sys

import click

from bide.cli.demo import demo
from bide.cli.enqueue import enqueue
from bide.cli.info import info
from bide.cli.worker import worker
from bide.errors import BideError, UsageError
from bide.version import VERSION


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(VERSION, prog_name="bide")
def group() -> None:
    """A task queue on Valkey/Redis in which delay comes first."""


for command in (demo, worker, enqueue, info):
    group.add_command(command)


def main() -> None:
    """Run the command line; exits with 0, or 1 on an error, or 2 where it cannot be meant."""
    try:
        group()
    except BideError as error:
        click.echo(f"Error: {error}", err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)
    except BrokenPipeError:  # `bide info | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
