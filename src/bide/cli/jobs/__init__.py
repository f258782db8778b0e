"""`bide jobs`: look at jobs, and change them by id or in bulk.

`find` says which jobs are meant, `look` what is known of one, `ls` and `show` print it, `change`
has the verbs.
"""

from __future__ import annotations

import click

from bide.cli.jobs.change import VERBS
from bide.cli.jobs.show import ls, show
from bide.cli.options import CommandGroup, server_options


@click.group(cls=CommandGroup)
@server_options
def jobs(url: str | None, prefix: str | None) -> None:
    """List, show and change jobs, by id or in bulk."""


for command in (ls, show, *VERBS):
    jobs.add_command(command)

__all__ = ["jobs"]
