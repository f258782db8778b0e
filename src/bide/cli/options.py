"""Options that commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import reduce, wraps
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from bide.client.config import (
    LOG_FORMATS,
    WorkerSettings,
    mask_setting,
    settings,
    url_or_prefix,
)
from bide.errors import TaskNotFound, UsageError
from bide.model.ids import check_name
from bide.queue.select import Mask, unmasked
from bide.tasks.task import import_module
from bide.views._sync import Site
from bide.views.job import read_mask
from bide.views.params import did_you_mean
from bide.worker.queue_state import read_strategy

if TYPE_CHECKING:
    from bide.cli.server import Named

F = TypeVar("F", bound=Callable[..., Any])


def option(names: str, metavar: str, help: str, **more: Any) -> Callable[[F], F]:
    """Create an option from its names, separated by blanks; metavar `N` means an integer."""
    if metavar == "N":
        more.setdefault("type", int)
    return click.option(*names.split(), metavar=metavar or None, help=help, **more)


def flag(names: str, help: str) -> Callable[[F], F]:
    """Create an option without a value."""
    return click.option(*names.split(), is_flag=True, help=help)


def together(*options: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Combine options into one decorator, in their order."""
    return lambda function: reduce(lambda inner, option: option(inner), options[::-1], function)


def _inherit(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return the value given here, otherwise the value given to a group above."""
    parent = ctx.parent
    while value is None and parent is not None and param.name is not None:
        value = parent.params.get(param.name)
        parent = parent.parent
    return value


def _url(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """Return the URL given here or above; make the function that it names importable."""
    value = _inherit(ctx, param, value)
    with suppress(UsageError):  # the command itself reports it, if it needs the URL
        if "credentials=" in (url_or_prefix("url", value)[0] or ""):
            import_from_here()
    return value


url_option = option(
    "-u --url",
    "URL",
    "URL of the server; otherwise $BIDE_URL, [tool.bide], redis://127.0.0.1:6379/0.",
    callback=_url,
)
"""`--url`; it may also stand before the command's name, and then the last one applies."""

json_option = flag("--json as_json", "Print JSON.")
yes_option = flag("-y --yes", "Do not ask for confirmation.")


server_options = together(
    url_option,
    option(
        "--prefix",
        "PREFIX",
        "Prefix of all keys; otherwise $BIDE_PREFIX, [tool.bide], bide.",
        callback=_inherit,
    ),
)
"""`--url` and `--prefix`; both may also stand before the command's name."""


def _no_queue(name: str, there: Sequence[str], where: str) -> str:
    check_name(name, "queue name")
    end = did_you_mean(name, there)
    if not end:
        end = f"; there are {', '.join(there)}." if there else "; no queue has been used yet."
    return f"There is no queue {name!r} on {where}{end}"


def site_options(function: Callable[..., Any]) -> Any:
    """Add `--url` and `--prefix`, which the command receives as `site`."""

    @wraps(function)
    def with_site(*args: Any, url: str | None, prefix: str | None, **options: Any) -> Any:
        return function(*args, site=_site(url, prefix, unmasked), **options)

    return server_options(with_site)


def masked_site_options(function: Callable[..., Any]) -> Any:
    """Add `--url`, `--prefix`, `--mask` and `--json`; the site has the mask."""

    @wraps(function)
    def with_site(
        *args: Any,
        url: str | None,
        prefix: str | None,
        mask: str | None,
        as_json: bool,
        **options: Any,
    ) -> Any:
        site = _site(url, prefix, mask_of(mask, as_json))
        return function(*args, site=site, as_json=as_json, **options)

    return server_options(mask_option(json_option(with_site)))


def _site(url: str | None, prefix: str | None, mask: Mask) -> Site:
    """Create the site of a command; its filters see unmasked values."""
    more: dict[str, Any] = {"no_queue": _no_queue, "search_mask": unmasked}
    return Site(url, prefix, mask=mask, retry_for=0, **more)


mask_option = option(
    "--mask",
    "MASK",
    "Mask of secrets in the output: secrets, none or MODULE:FUNCTION; otherwise $BIDE_MASK, "
    "[tool.bide], secrets (none for --json).",
)
"""`--mask`: hides values in the output."""


def mask_of(given: str | None, as_json: bool = False) -> Mask:
    """Return the given mask, otherwise that of the settings; the default masks text, and not JSON.

    Programs read JSON, and must not lose values unless a mask was set on purpose.
    """
    if ":" in (given or mask_setting()[0] or ""):
        import_from_here()
    return read_mask(given, "--mask", "none" if as_json else "secrets")


def say_masked(jobs: Sequence[dict[str, Any]]) -> None:
    """Print on standard error that JSON lacks values, and how to get them."""
    from bide.cli.screen import aside
    from bide.logs import count

    if masked := sum(bool(each["masked"]) for each in jobs):
        aside(f"The mask hides values of {count(masked, 'job')}; --mask none prints them.")


log_options = together(
    flag("-v --verbose", "Log every job."),
    option(
        "--log-format",
        "",
        "Log format: for people, logfmt, or JSON lines; otherwise $BIDE_LOG_FORMAT.  "
        "[default: text]",
        type=click.Choice(LOG_FORMATS),
    ),
)
"""`--verbose` and `--log-format`."""


def queue_option(help: str, name: str = "queue", **more: Any) -> Callable[[F], F]:
    """Create `--queue`; a shell completes the names."""
    completed: Any = {"metavar": "QUEUE", "help": help, "shell_complete": completing("queues")}
    return click.option("-q", "--queue", name, **completed, **more)


def queues_option(help: str) -> Callable[[F], F]:
    """Create `--queue`, which may be repeated."""
    return queue_option(help, "queues", multiple=True)


def limit_option(
    what: str, default: int | None = None, most: int | None = None
) -> Callable[[F], F]:
    """Create `--limit`: the maximum number of listed or changed things."""
    return option(
        "-n --limit",
        "N",
        f"Maximum number of {what}.{f'  [default: {default}]' if default else ''}",
        type=click.IntRange(1, most),
        default=default,
    )


def completing(kind: Named) -> Callable[..., list[CompletionItem]]:
    """Return a function that completes names for a shell; none if the server is slow."""

    def complete(
        ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        from bide.cli.server import completions

        names = completions(kind, ctx.params.get("url"), ctx.params.get("prefix"))
        return [CompletionItem(name) for name in names if name.startswith(incomplete)]

    return complete


def served_modules(given: Sequence[str] = (), told: WorkerSettings | None = None) -> list[str]:
    """Return the modules whose functions may run: those given, otherwise of [tool.bide.worker].

    A program that calls this command line, such as Django's `manage.py`, may add modules.
    """
    context = click.get_current_context(silent=True)
    found = [*((context and context.obj) or ()), *(given or (told or settings().worker).modules)]
    return list(dict.fromkeys(found))


def all_modules() -> list[str]:
    """Return the modules of all workers in the file."""
    told = settings()
    each = [served_modules(told=worker) for worker in (told.worker, *told.workers.values())]
    return list(dict.fromkeys(name for names in each for name in names))


def worker_options(
    queues: Sequence[str], told: WorkerSettings | None = None, **given: Any
) -> dict[str, Any]:
    """Return the options of a `Worker` that are given, or otherwise set in `told`.

    `told` is a profile; by default [tool.bide.worker].
    """
    told = told or settings().worker
    options: dict[str, Any] = {"queues": list(queues or told.queues)}
    options |= {
        name: getattr(told, name, None) if value is None else value for name, value in given.items()
    }
    if isinstance(options["strategy"], str):
        options["strategy"] = read_strategy(options["strategy"])
    return {name: value for name, value in options.items() if value not in (None, [])}


def profile_named(name: str) -> WorkerSettings:
    """Return the profile of this name in the file."""
    told = settings()
    if name not in told.workers:
        end = did_you_mean(name, told.workers)
        if not end:
            end = f"; there are {', '.join(told.workers)}." if told.workers else NO_PROFILES
        raise UsageError(f"There is no worker profile {name!r}{end}")
    return told.workers[name]


NO_PROFILES: Final = "; write each into a table [tool.bide.workers.NAME] of pyproject.toml."


def import_from_here() -> None:
    """Make modules of the working directory importable, as `python -m` does."""
    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise UsageError("The working directory was removed; change to another one.") from None
    if "" not in sys.path and here not in sys.path:
        sys.path.insert(0, here)


def import_configured(otherwise: str) -> list[str]:
    """Import the modules of [tool.bide.worker]; return those that could be imported.

    For each other module, print on standard error the reason and the consequence.
    """
    from bide.cli.screen import aside

    import_from_here()
    imported = []
    for module in all_modules():
        try:
            import_module(module)
            imported.append(module)
        except TaskNotFound as error:
            aside(f"{str(error).rstrip('.')}; {otherwise}.")
    return imported


def read_address(text: str, option: str = "--health-port") -> tuple[str, int]:
    """Parse a port, or an interface and a port: `8080`, `127.0.0.1:8080`, `[::1]:8080`."""
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
        try:
            if not args and not ctx.resilient_parsing and not self.invoke_without_command:
                click.echo(ctx.get_help())
                ctx.exit()
            return super().parse_args(ctx, args)  # prints the help or the version if asked to
        except BrokenPipeError:  # click would exit with 1
            raise PipeClosed from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command that is named; if there is none, the error names the nearest."""
        if args and self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            name = args[0]
            if name.startswith("-"):
                raise click.NoSuchOption(name, ctx=ctx)
            inner = [
                f"`{group} {name}`"
                for group, one in self.commands.items()
                if isinstance(one, click.Group) and name in one.commands
            ]
            end = f"; did you mean {' or '.join(inner)}?" if inner else ""
            if name == "ls" and self.invoke_without_command:
                end = f"; `{ctx.command_path}` lists them."
            end = end or did_you_mean(name, self.commands)
            end = end or f"; there are {', '.join(self.commands)}."
            ctx.fail(f"There is no command {name!r}{end}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; click would exit with 1 on a `BrokenPipeError`."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise PipeClosed from None
