"""Break things under load, and check the books: `python -m tests.chaos [FAULT]...`."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import platform
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from bide.embedded import identify, wheel_server
from tests.chaos import figures, page
from tests.chaos.books import Account
from tests.chaos.catalogue import FAULTS
from tests.chaos.scene import Scene, Verdict
from tests.support.programs import distribution_server

SCALE = 2.0


def main() -> int:
    """Run, print a line for each fault, write the report; 1 if something did not hold."""
    options = _options()
    if options.page:
        page.write()
        return 0
    if unknown := [name for name in options.names if name not in FAULTS]:
        print(f"there is no fault {unknown[0]!r}; there are {', '.join(FAULTS)}", file=sys.stderr)
        return 2
    names = options.names or list(FAULTS)
    playable = [name for name in names if not FAULTS[name].missing()]
    for name in names:
        if reason := FAULTS[name].missing():
            print(f"{name} is left out: {reason}", file=sys.stderr)
    if not playable:
        return 2
    seed = random.randrange(10**6) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what was started is ended
    ends = time.monotonic() + 60 * options.minutes
    verdicts: list[Verdict] = []
    seeds: list[int] = []
    while not verdicts or time.monotonic() < ends:
        seeds.append(seed)
        for name in playable:
            if verdicts and len(seeds) > 1 and time.monotonic() >= ends:
                break
            verdict = _play(name, seed, options)
            if verdict is not None:
                verdicts.append(verdict)
                _say(verdict)
        if options.plan:
            return 0
        seed += 1
    rows = figures.add_up(verdicts, _about(options.server))
    if options.report:
        old = figures.read(page.DATA) if page.DATA.exists() else []
        figures.write(page.DATA, figures.replaced(old, rows, FAULTS))
        page.write()
        print(f"wrote {page.PAGE.name} and {page.DATA.name} in {page.DOCS}")
    return 1 if any(row.findings for row in rows) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="FAULT", help=f"of {', '.join(FAULTS)}")
    parser.add_argument(
        "--seed", type=int, help="of what goes wrong and when; printed if not given"
    )
    parser.add_argument(
        "--minutes", type=float, default=0.0, help="go on with the next seed for so long"
    )
    parser.add_argument(
        "--scale", type=float, default=SCALE, help="how many times as many jobs and injections"
    )
    parser.add_argument("--server", metavar="WHICH", help="valkey, redis, or a server's path")
    parser.add_argument("--plan", action="store_true", help="print the schedule, and do nothing")
    parser.add_argument(
        "--report", action="store_true", help="write docs/reliability.md: these rows"
    )
    parser.add_argument("--page", action="store_true", help="write it again from its figures")
    options = parser.parse_args()
    options.server = {
        None: wheel_server(),
        "valkey": wheel_server(),
        "redis": distribution_server(),
    }.get(options.server, options.server)
    return options


def _play(name: str, seed: int, options: argparse.Namespace) -> Verdict | None:
    """Play one fault; only print its plan if that was asked for."""
    with tempfile.TemporaryDirectory(prefix="bide-chaos-") as home:
        scene = Scene(FAULTS[name](), Path(home), seed, options.scale, options.server)
        if options.plan:
            print(name, *scene.plan, sep="\n  ", flush=True)
            return None
        logs = io.StringIO()
        try:
            with contextlib.redirect_stdout(logs), scene:
                verdict = scene.play()
        except Exception as error:
            traceback.print_exc()
            found = f"it did not come to its end: {error!r}"
            account = Account(jobs=scene.jobs, findings=[found])
            verdict = Verdict(name, seed, len(scene.plan), account, 0, "", 0.0)
        if not verdict.holds:
            print(logs.getvalue())
        return verdict


def _say(verdict: Verdict) -> None:
    account = verdict.account
    print(
        f"{verdict.fault:18} {account.jobs:5} jobs {verdict.injections:3} injections "
        f"{account.lost} lost {account.early} early {account.explained:4} explained "
        f"{account.unexplained} unexplained  {verdict.seconds:5.1f} s "
        f"{'holds' if verdict.holds else 'DOES NOT HOLD'}",
        flush=True,
    )
    for finding in account.findings[:20]:
        print(f"    {finding}", flush=True)
    if not verdict.holds:
        print(f"    again: python -m tests.chaos {verdict.fault} --seed {verdict.seed}", flush=True)


def _about(server: str) -> dict[str, Any]:
    flavour, version = identify(server) or ("?", "?")
    return {
        "server": f"{flavour.title()} {version}",
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "date": time.strftime("%Y-%m-%d"),
    }


if __name__ == "__main__":
    sys.exit(main())
