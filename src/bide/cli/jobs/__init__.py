"""`bide jobs`: look at jobs, and change them by id or in bulk.

`show` lists and prints them, `change` has the verbs.
"""

from __future__ import annotations

import click

from bide.cli.jobs.change import COMMANDS
from bide.cli.jobs.show import ls, show
from bide.cli.options import CommandGroup, server_options


@click.group(cls=CommandGroup)
@server_options
def jobs(url: str | None, prefix: str | None) -> None:
    """List, show and change jobs, by id or in bulk."""


for command in (ls, show, *COMMANDS):
    jobs.add_command(command)

__all__ = ["jobs"]
