"""`bide doctor`: whether this server, and this machine, are fit for jobs."""

from __future__ import annotations

import click

from bide.cli.checks import Finding, delayed_jobs_of_rq, diagnose, parted, report, unknown
from bide.cli.options import json_option, server_options
from bide.cli.probe import delayed_on_rq, probe
from bide.cli.screen import Cell, Style, echo, echo_json, hanging
from bide.cli.site import Site
from bide.errors import BideError, ServerRefused

_STYLE: dict[str, Style] = {"ok": "green", "warn": "yellow", "fail": "red", "note": "dim"}


@click.command()
@server_options
@json_option
@click.pass_context
def doctor(ctx: click.Context, url: str | None, prefix: str | None, as_json: bool) -> None:
    """Check the server's settings, its clock and the way to it.

    It also looks for overdue jobs in RQ's delay queues.

    Exits with 1 if a check fails. Each line is ok, warn (safe today), fail (jobs are lost,
    refused or late), or a note, and says how to repair what is not ok. If a check cannot run,
    its line says why.
    """
    site = Site(url, prefix)
    readings = probe(site.client.url)
    is_lost = all(one.lost for one in readings)
    of_rq = [] if is_lost else delayed_jobs_of_rq(delayed_on_rq(site.client))
    findings = [*diagnose(readings), _scripts(site, is_lost), *of_rq]
    failed = any(finding.verdict == "fail" for finding in findings)
    if as_json:
        echo_json({"ok": not failed, "server": site.where, "checks": report(findings)})
    else:
        echo(site.where, "bold")
        for finding in findings:
            head = [
                Cell(f"{finding.verdict:<4}", _STYLE[finding.verdict]),
                Cell(f"{finding.check:<12}"),
            ]
            hanging(head, finding.says)
            if finding.fix:
                hanging(["    ", " " * 12], finding.fix, "dim")
    ctx.exit(1 if failed else 0)


def _scripts(site: Site, is_lost: bool) -> Finding:
    """Whether bide's scripts may run: an ACL, a managed service or a full disk may prevent it."""
    if is_lost:
        return unknown("scripts", "the server did not answer")
    try:
        queues = site.queues()
    except BideError as error:
        wrong, fix = parted(str(error))
        if isinstance(error, ServerRefused):
            fix = fix or "Allow EVALSHA and SCRIPT LOAD."
        return Finding("scripts", "fail", f"cannot be run: {wrong}", fix or "See above.")
    return Finding("scripts", "ok", f"can be run; queues under {site.prefix}: {len(queues)}")
