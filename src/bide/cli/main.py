"""The command `bide` itself: its group, and how errors leave it."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

import click

from bide.cli.acl import acl
from bide.cli.completion import completion
from bide.cli.cron import cron
from bide.cli.demo import demo
from bide.cli.dev import dev
from bide.cli.doctor import doctor
from bide.cli.enqueue import enqueue
from bide.cli.events import events
from bide.cli.forget import forget
from bide.cli.fsck import fsck
from bide.cli.group import Group, PipeClosed
from bide.cli.health import health
from bide.cli.info import info
from bide.cli.jobs import jobs
from bide.cli.limits import limit
from bide.cli.metrics import metrics
from bide.cli.options import server_options
from bide.cli.queues import queues
from bide.cli.rq_timer import rq_timer
from bide.cli.script import script
from bide.cli.site import NotFound
from bide.cli.top import top
from bide.cli.upcoming import upcoming
from bide.cli.upgrade import upgrade
from bide.cli.web import web
from bide.cli.worker import worker
from bide.cli.workers import workers
from bide.errors import BideError, JobNotFound, ScheduleNotFound, UsageError
from bide.logs import printable
from bide.version import VERSION

OK: Final = 0
FAILED: Final = 1
"""The server could not be reached or refused, a check failed, a job did not change."""
USAGE: Final = 2
"""The command line cannot be meant, or needs an answer that nobody is there to give."""
NOT_FOUND: Final = 3
"""A job or queue that was named is not there."""
INTERRUPTED: Final = 130
"""Ctrl-C: 128 and the signal's number, as a shell has it."""
PIPE_CLOSED: Final = 141

_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(VERSION, prog_name="bide")
@server_options
def group(url: str | None, prefix: str | None) -> None:
    """A task queue on Valkey/Redis in which delay comes first."""


for command in (
    demo,
    dev,
    worker,
    enqueue,
    info,
    jobs,
    upcoming,
    events,
    queues,
    cron,
    workers,
    health,
    metrics,
    top,
    web,
    doctor,
    acl,
    fsck,
    rq_timer,
    script,
    completion,
):
    group.add_command(command)
queues.add_command(limit)
queues.add_command(forget)
queues.add_command(upgrade)


def main() -> NoReturn:
    """Run the command line, and exit with its code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed: what is opened next must not take its place
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(run())


def run(args: Sequence[str] | None = None) -> int:
    """Run one command line; its exit code. An error is one sentence on standard error."""
    try:
        code = group.main(args, prog_name="bide", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else "bide"
        return _say(f"{error.format_message()} See `{path} --help`.", USAGE)
    except click.ClickException as error:
        return _say(error.format_message(), error.exit_code)
    except UsageError as error:
        return _say(str(error), USAGE)
    except (JobNotFound, ScheduleNotFound, NotFound) as error:
        return _say(str(error), NOT_FOUND)
    except BideError as error:
        return _say(str(error), FAILED)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Stopped.", err=True)
        return INTERRUPTED
    except (PipeClosed, BrokenPipeError):
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except OSError as error:
        with contextlib.suppress(OSError):  # what is buffered would raise it again at the end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno in _UNWRITABLE:
            return _say(f"The output cannot be written ({error.strerror}).", FAILED)
        return _say(f"The system refused something: {error}.", FAILED)


def _say(sentence: str, code: int) -> int:
    with contextlib.suppress(OSError):
        click.echo(f"Error: {printable(' '.join(sentence.split()))}", err=True)
    return code
