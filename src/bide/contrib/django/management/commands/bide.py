"""`manage.py bide`: bide's command line, in which workers know the tasks of the project."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from django.apps import apps
from django.core.management.base import BaseCommand, CommandError

from bide.cli.main import run
from bide.contrib.django.apps import task_modules
from bide.contrib.django.backend import common_server
from bide.contrib.django.outbox.writing import APP, OUTBOX

_OF_DJANGO: Final = ("--settings", "--pythonpath")
"""Options that `manage.py` itself has read, before it runs the command."""


class Command(BaseCommand):  # type: ignore[misc]
    """Runs bide's command line."""

    help = (
        "Runs bide's command line: `bide worker` and `bide dev` serve the module `tasks` of each "
        "installed application. `manage.py bide --help` lists the commands."
    )
    before: tuple[str, ...] = ()
    """Arguments before those of the command line."""

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command line with the arguments after `manage.py bide`, and exit with its code.

        Django's own parser would take options that are meant for bide.
        """
        program = f"{Path(argv[0]).name} bide"
        sys.exit(run_here([*self.before, *without_django(argv[2:])], program))

    def print_help(self, prog_name: str, subcommand: str) -> None:
        """Print the help of the command line, for `manage.py help bide`."""
        run_here([*self.before, "--help"], f"{Path(prog_name).name} bide")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Take all arguments, for `call_command`."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *args: Any, arguments: Sequence[str], **options: Any) -> None:
        """Run the command line for `call_command`; an error is a `CommandError`."""
        if code := run_here([*self.before, *arguments], "manage.py bide"):
            raise CommandError(f"bide exited with {code}.", returncode=code)


def run_here(arguments: Sequence[str], program: str) -> int:
    """Run the command line for this project; return its exit code."""
    outbox = OUTBOX if apps.is_installed(APP) else None
    return run(
        arguments,
        program=program,
        modules=task_modules(),
        defaults=common_server(),
        outbox=outbox,
    )


def without_django(arguments: Sequence[str]) -> list[str]:
    """Leave out the options that `manage.py` has read; what follows `--` is for another program."""
    at = arguments.index("--") if "--" in arguments else len(arguments)
    left: list[str] = []
    own = iter(arguments[:at])
    for argument in own:
        if argument in _OF_DJANGO:
            next(own, None)
        elif not argument.startswith(tuple(f"{name}=" for name in _OF_DJANGO)):
            left.append(argument)
    return [*left, *arguments[at:]]
