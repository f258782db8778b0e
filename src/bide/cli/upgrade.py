"""`bide queues upgrade`: bring what queues store to another schema."""

from __future__ import annotations

from collections.abc import Iterator

import click

from bide.cli.options import server_options
from bide.cli.queues import queue_names
from bide.cli.screen import echo
from bide.cli.site import Site
from bide.errors import BideError, UsageError
from bide.keys import SCHEMA, Keys
from bide.ops import manage


@click.command()
@queue_names
@click.option("--to", "target", type=int, metavar="SCHEMA", help=f"[default: {SCHEMA}, the newest]")
@click.option("--force", is_flag=True, help="Though workers are alive that do not know it.")
@server_options
def upgrade(
    names: tuple[str, ...], target: int | None, force: bool, url: str | None, prefix: str | None
) -> None:
    """Bring what a queue stores to another schema.

    That is the newest that this bide knows, or an older one, to go back. Older programs are
    refused from the beginning of the way up to the end of the way back. Jobs run meanwhile. What
    was interrupted is begun again.
    """
    site = Site(url, prefix)
    to = manage.check_schema(SCHEMA if target is None else target)
    known = site.known(names)
    if not force:
        _check_workers(site, known, to)
    for name, counts in site.counts(known).items():
        changed = sum(
            _convert(site, site.queue(name).keys, step) for step in _steps(counts.schema, to)
        )
        echo(f"{name} is stored in schema {to}; {changed:,} values were changed.")


def _steps(found: int, target: int) -> Iterator[int]:
    """Each schema on the way; the one that is there, where it may not have been completed."""
    if found == target:
        yield target
    while found != target:
        found += 1 if target > found else -1
        yield found


def _convert(site: Site, keys: Keys, target: int) -> int:
    """One step of the way, to its end; how many values were changed."""
    changed, cursor = 0, "0"
    while True:
        done = site.client.run(manage.upgrade(keys, target, cursor))
        if done.found:
            raise BideError(f"{keys.queue} is in schema {done.found} by now; run this once more.")
        changed, cursor = changed + done.changed, done.cursor
        if cursor == "0":
            return changed


def _check_workers(site: Site, names: list[str], target: int) -> None:
    """Refuse to lay a queue out so that workers which are alive can no longer touch it."""
    for worker in site.workers():
        if worker.about.schema < target and {*worker.about.queues} & {*names}:
            raise UsageError(
                f"The worker {worker.name} (bide {worker.about.version}) does not know schema "
                f"{target}; stop such workers first, or --force: then their jobs run again."
            )
