"""`bide queues limit`: set and show how many jobs of a queue, or of a group, may begin and run."""

from __future__ import annotations

import click

from bide.cli.groups import group_line, group_report
from bide.cli.options import json_option, server_options
from bide.cli.queues import group_option, limits_line, limits_report, queue_names
from bide.cli.screen import echo, echo_json
from bide.cli.site import Site
from bide.errors import UsageError
from bide.limits import NONE
from bide.options import GroupSettings, QueueSettings


@click.command()
@queue_names
@group_option
@click.option(
    "--rate", metavar="RATE", help="How many may begin in which time: 100/s, 5/10m; none."
)
@click.option(
    "--burst", metavar="N", type=int, help="How many of these at once after a quiet time."
)
@click.option("--max-active", metavar="N", help="How many may run at once, on all workers; none.")
@server_options
@json_option
def limit(
    names: tuple[str, ...],
    group: str | None,
    rate: str | None,
    burst: int | None,
    max_active: str | None,
    url: str | None,
    prefix: str | None,
    as_json: bool,
) -> None:
    """Show the limits of a queue, or of a group, or set them.

    Those that are not given stay as they are; `none` removes one.
    """
    settings: QueueSettings = {}
    if rate is not None:
        settings["rate"] = None if rate == NONE else rate
    if burst is not None:
        settings["burst"] = burst
    if max_active is not None:
        settings["max_active"] = _number(max_active)
    site = Site(url, prefix)
    known = site.known(names)
    if group is None:
        _of_queues(site, known, settings, as_json)
    else:
        _of_group(site, known, group, settings, as_json)


def _of_queues(site: Site, known: list[str], settings: QueueSettings, as_json: bool) -> None:
    if settings:
        for name in known:
            site.queue(name).configure(**settings)
    counts = site.counts(known)
    if as_json:
        echo_json({"queues": {name: limits_report(each) for name, each in counts.items()}})
        return
    for name, each in counts.items():
        echo(f"{name}: {limits_line(each) or 'no limits'}")


def _of_group(
    site: Site, known: list[str], group: str, settings: QueueSettings, as_json: bool
) -> None:
    wanted: GroupSettings = {}
    if "rate" in settings:
        wanted["rate"] = settings["rate"]
    if "burst" in settings:
        wanted["burst"] = settings["burst"]
    if "max_active" in settings:
        wanted["concurrency"] = settings["max_active"]
    if wanted:
        for name in known:
            site.queue(name).group(group).configure(**wanted)
    found = {name: site.queue(name).group(group).counts() for name in known}
    if as_json:
        echo_json({"queues": {name: group_report(each) for name, each in found.items()}})
        return
    for name, each in found.items():
        echo(f"Group {group} of {name}: {group_line(each) or 'no limits but those of its jobs'}")


def _number(text: str) -> int | None:
    if text == NONE:
        return None
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"--max-active {text!r} is no number; give one, or none.") from None
