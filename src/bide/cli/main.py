"""The command `bide`: its group of commands, and the exit code of each error."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import click
from click.core import ParameterSource
from click.shell_completion import get_completion_class

from bide.cli.cron import cron
from bide.cli.demo import demo
from bide.cli.dev import dev
from bide.cli.doctor import doctor
from bide.cli.health import fsck, health, metrics
from bide.cli.jobs import enqueue, jobs
from bide.cli.options import (
    CommandGroup,
    PipeClosed,
    flag,
    json_option,
    queue_option,
    server_options,
)
from bide.cli.outbox import outbox
from bide.cli.overview import events, info, top, upcoming
from bide.cli.queues import queues
from bide.cli.run import rq_timer, web, worker
from bide.cli.screen import echo, echo_json
from bide.cli.server import acl
from bide.cli.workers import tasks, workers
from bide.client.url import resolve_prefix
from bide.errors import BideError, JobNotFound, ScheduleNotFound, UsageError
from bide.logs import printable
from bide.protocol.keys import keys_of
from bide.protocol.scripts import load
from bide.version import VERSION
from bide.views.params import NotFound

_HOW = {
    "bash": 'eval "$(bide completion bash)"   in ~/.bashrc',
    "zsh": 'eval "$(bide completion zsh)"   in ~/.zshrc',
    "fish": "bide completion fish > ~/.config/fish/completions/bide.fish",
}


@click.command(
    epilog="\b\n" + "\n".join(_HOW.values()),
)
@click.argument("shell", type=click.Choice(list(_HOW)))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that lets your shell complete commands."""
    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(ctx.find_root().command, {}, "bide", "_BIDE_COMPLETE").source())
    if shell == "bash":  # otherwise bash would split shop:send at the colon
        click.echo("COMP_WORDBREAKS=${COMP_WORDBREAKS//:}")


SCRIPTS = ("enqueue",)
"""The scripts that other programs may call; docs/reference/wire.md describes their stable parts."""


@click.command()
@click.argument("name", type=click.Choice(SCRIPTS))
@flag("--keys only_keys", "Print the keys of QUEUE, one per line.")
@flag("--sha only_sha", "Print the SHA-1 by which EVALSHA calls the script.")
@queue_option("Queue whose keys are printed.")
@server_options
@json_option
def script(
    name: str,
    only_keys: bool,
    only_sha: bool,
    queue: str | None,
    url: str | None,
    prefix: str | None,
    as_json: bool,
) -> None:
    """Print a Lua script for programs in other languages.

    The text is the one that bide sends, for EVAL and SCRIPT LOAD. The command calls no server.
    """
    if only_keys + only_sha + as_json > 1:
        raise UsageError("Give one of --keys, --sha and --json.")
    if (only_keys or as_json) and queue is None:
        raise UsageError("Keys are those of a queue; name it with --queue.")
    if queue is not None and not (only_keys or as_json):
        raise UsageError("The text is the same for all queues; with --queue goes --keys or --json.")
    found = load(name)
    if only_sha:
        echo(found.sha)
    elif queue is None:
        click.echo(found.text, nl=False)
    else:
        keys = keys_of(queue, resolve_prefix(prefix)).of(found.keys)
        if as_json:
            echo_json({"name": name, "sha": found.sha, "keys": list(keys), "text": found.text})
        else:
            for key in keys:
                echo(key)


_NOTHING: Final[Mapping[str, str]] = {}

OK: Final = 0
FAILED: Final = 1
"""The server was unreachable or refused, a check failed, or a job did not change."""
USAGE: Final = 2
"""The command line is invalid, or the command has a question and there is no terminal."""
NOT_FOUND: Final = 3
"""A named job, queue, schedule, worker or row does not exist."""
INTERRUPTED: Final = 130
"""Ctrl-C: 128 plus the number of the signal, as in a shell."""
PIPE_CLOSED: Final = 141

_UNWRITABLE: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


@click.group(
    cls=CommandGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(VERSION, prog_name="bide")
@server_options
@click.pass_context
def group(ctx: click.Context, url: str | None, prefix: str | None) -> None:
    """A task queue on Valkey/Redis in which delay comes first."""
    name = ctx.invoked_subcommand
    assert name is not None
    takes = {param.name for param in group.commands[name].params}
    for option in ("url", "prefix"):
        given = ctx.get_parameter_source(option) is ParameterSource.COMMANDLINE
        if given and option not in takes:
            raise UsageError(f"`bide {name}` has no --{option}; leave it out.")


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
    tasks,
    outbox,
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


def main() -> NoReturn:
    """Run the command line, and exit with its code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed: the next opened file must not take its place
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.exit(run())


def run(
    args: Sequence[str] | None = None,
    *,
    program: str = "bide",
    modules: Sequence[str] = (),
    defaults: Mapping[str, str] = _NOTHING,
    outbox: str | None = None,
) -> int:
    """Run one command line; return its exit code. An error is one sentence on standard error.

    Args:
        args: the arguments; by default those of the process.
        program: the program's name in usages and errors.
        modules: modules that workers serve besides those that the command line or the file names.
        defaults: values for `url` and `prefix` if the command line has none.
        outbox: the outbox, as `module:name`, of commands that name none.
    """
    default_map: dict[str, Any] = dict(defaults)
    if outbox is not None:
        its = ("relay", "ls", "retry", "delete")
        default_map["outbox"] = {name: {"path": outbox} for name in its}
        default_map |= {name: {"outbox": outbox} for name in ("worker", "dev", "metrics", "doctor")}
        default_map["web"] = {"outboxes": [outbox]}
    more: dict[str, Any] = {"obj": tuple(modules), "default_map": default_map}
    try:
        code = group.main(args, prog_name=program, standalone_mode=False, **more)
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx else program
        known = [name for one in error.ctx.command.params for name in one.opts] if error.ctx else []
        if getattr(error, "option_name", "") == "--delay" and "--in" in known:  # as in the library
            error = click.NoSuchOption("--delay", "No such option '--delay'. Did you mean '--in'?")
        said = error.format_message()
        if isinstance(error, click.NoSuchOption) and error.option_name[1:2].isdigit():
            said += " An argument that begins with a minus stands behind --."
        return _say(f"{said} See `{path} --help`.", USAGE)
    except click.ClickException as error:
        return _say(error.format_message(), error.exit_code)
    except BideError as error:
        is_missing = isinstance(error, JobNotFound | ScheduleNotFound | NotFound)
        code = USAGE if isinstance(error, UsageError) else NOT_FOUND if is_missing else FAILED
        return _say(str(error), code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Stopped.", err=True)
        return INTERRUPTED
    except (PipeClosed, BrokenPipeError):
        with contextlib.suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except OSError as error:
        with contextlib.suppress(OSError):  # buffered output would raise it again at the exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if error.errno in _UNWRITABLE:
            return _say(f"The output cannot be written ({error.strerror}).", FAILED)
        if note := next(iter(getattr(error, "__notes__", ())), ""):
            return _say(f"{note} ({type(error).__name__}: {error}); correct the cause.", FAILED)
        return _say(f"The system refused something: {error}.", FAILED)


def _say(sentence: str, code: int) -> int:
    with contextlib.suppress(OSError):
        click.echo(f"Error: {printable(' '.join(sentence.split()))}", err=True)
    return code
