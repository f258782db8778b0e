"""How many jobs a producer adds in a second, by the way it calls.

One process against an idle server; each library by the calls that it has: one by one, blocking or
awaited; a hundred callers that await in one loop, which are also held against one that awaits one
by one; many in one call, 500 a call. Jobs are due at once or in an hour. All take turns, round
after round. The floor of a way that makes one round trip at a time is PING by the client library
that bide uses: what a round trip costs with no queue in it.

The server and the producer have a processor each (`benchmarks.places`); what changes where the
kernel places them stands beside it.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from benchmarks.lab import Lab
from benchmarks.peer import Peer, open_peer, server_s
from benchmarks.places import Place, placed
from benchmarks.report import Aim, Report, Row, Rows
from benchmarks.rounds import Pair, company, in_turn, medians, ratios

QUICK_S, THOROUGH_S = 30, 75
DELAY_S = 3600.0


class Way(NamedTuple):
    """A way to enqueue, and what is held against what."""

    name: str
    title: str
    jobs: int
    pairs: dict[str, float]
    """bide against peers by their names: how many times as fast it is to be."""
    place: Place = "apart"


ONE_BY_ONE = ", one by one"
"""What stands behind the name of a peer whose callers are held against as they await in turn."""

WAYS = (
    Way("blocking", "one by one", 1_000, {"Dramatiq": 1.3, "Huey": 1.3, "RQ": 1.3, "Celery": 1.3}),
    Way(
        *("blocking", "one by one, wherever the kernel places server and producer", 1_000),
        {"Dramatiq": 0, "Huey": 0, "RQ": 0, "Celery": 0},
        "anywhere",
    ),
    Way("awaited", "one by one, awaited", 1_000, {"BullMQ": 0, "SAQ": 0, "arq": 0}),
    Way(
        "concurrent",
        "100 callers that await in one loop",
        6_000,
        {"BullMQ" + ONE_BY_ONE: 4, "BullMQ": 0, "SAQ": 0},
    ),
    Way("many", "many in one call", 20_000, {"RQ": 4, "BullMQ": 4, "streaq": 4}),
)
DUE = {"due at once": 0.0, "due in an hour": DELAY_S}


def run(lab: Lab) -> list[Report]:
    """Measure each way of each in turn, several times."""
    peers = list(company(lab).peers.values())
    with open_peer("ping", lab.server.url, company(lab).marks) as floor:
        measures = {
            f"{way.name} {way.place} {due} {peer.name}": partial(_time, lab, peer, way, delay)
            for way in WAYS
            for due, delay in DUE.items()
            for peer in [*peers, floor]
            if peer is not floor or (due == "due at once" and way.name in ("blocking", "awaited"))
        }
        rounds = in_turn(lab.seconds(QUICK_S, THOROUGH_S), measures)
    reports: list[Report] = []
    for way in WAYS:
        rows: Rows = {}
        aims: list[Aim] = []
        for due in DUE:
            prefix = f"{way.name} {way.place} {due} "
            ours = {
                name.removeprefix(prefix): measured
                for name, measured in rounds.items()
                if name.startswith(prefix) and measured[0]
            }
            rows |= {f"{name}, {due}": row for name, row in medians(ours, "jobs/s").items()}
            one_by_one: dict[str, list[Row]] = {
                f"{peer.name}{ONE_BY_ONE}": rounds.get(f"awaited apart {due} {peer.name}", [])
                for peer in peers
            }
            compared, met = ratios(
                ours | one_by_one,
                [Pair("bide", name, times) for name, times in way.pairs.items()],
                "jobs/s",
            )
            rows |= {f"  {name}, {due}": row for name, row in compared.items()}
            aims += [aim._replace(what=f"enqueue {way.title}, {due}: {aim.what}") for aim in met]
        note = "CPU µs: the producer's; server µs: the server's CPU; times: medians of ratios"
        reports.append(Report(f"Enqueueing, {way.title}", rows, "library", note, aims))
    return reports


def _time(lab: Lab, peer: Peer, way: Way, delay: float) -> Row:
    lab.empty()
    jobs = way.jobs // (2 if lab.quick else 1)
    told = peer.time(way.name, 1, delay)
    if told is None:
        return {}
    with placed(way.place, int(lab.client.info("server")["process_id"]), peer.pid):
        before = server_s(lab.client)
        told = peer.time(way.name, jobs, delay)
        used = server_s(lab.client) - before
    assert told is not None
    return {
        "jobs/s": jobs / told["seconds"],
        "CPU µs": told["cpu_s"] * 1e6 / jobs,
        "server µs": used * 1e6 / jobs,
    }
