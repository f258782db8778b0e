"""What a delayed job takes in the server's memory, enqueued as users do it.

The difference in `used_memory` between an empty server and one with many jobs, each due at a time
of its own in the hours to come, and each with its number as its argument; no worker is there. bide
is measured on every server that is here, its peers on the one under measurement. Some keep jobs so
that one can be found by its id (to be cancelled, or looked at), some do not: that is said. The
floor is a sorted set of ids and due times and nothing else.
"""

from __future__ import annotations

import time
from contextlib import ExitStack

from benchmarks.lab import Lab, binaries
from benchmarks.peer import LONGEST_S, Peer, complain, open_peer
from benchmarks.report import Aim, Report, Row, Rows
from benchmarks.rounds import company
from bide.embedded import Server

JOBS = 25_000
"""By which hash tables of 32,768 places are as full as they are on average."""

AHEAD_S = 3600.0
STEP_S = 1.0
MOST_BYTES = 260
"""On Redis 7, by id."""


def run(lab: Lab) -> list[Report]:
    """Load each server once: allocators are deterministic, rounds would tell nothing more."""
    here = company(lab)
    rows: Rows = {}
    aims: list[Aim] = []
    known = f"{lab.server.flavour} {lab.server.version}"
    for peer in here.peers.values():
        try:
            row = _load(lab, peer)
        except RuntimeError as error:
            complain(peer.name, error)
            continue
        found = "by id" if peer.about["by_id"] else "not by id"
        rows[f"{peer.name}, {known} ({found})"] = row
        if peer.key == "bide" and known.startswith("redis 7"):
            aims = [Aim(f"bytes a delayed job, {known}", row["bytes"], at_most=MOST_BYTES)]
    rows[f"floor: sorted set, {known}"] = _floor(lab)
    for binary in binaries(lab.chosen).values():
        if binary == lab.server.binary:
            continue
        with ExitStack() as stack:
            server = stack.enter_context(Server.start(binary=binary))
            other = Lab(server, lab.quick, None)
            bide = stack.enter_context(open_peer("bide", server.url, here.marks))
            name = f"{server.flavour} {server.version}"
            rows[f"{bide.name}, {name} (by id)"] = _load(other, bide)
            rows[f"floor: sorted set, {name}"] = _floor(other)
    note = "used_memory, a job; by id: whether a delayed job can be found by its id"
    return [Report(f"Memory per delayed job, {JOBS:,} jobs", rows, "library", note, aims)]


def _load(lab: Lab, peer: Peer) -> Row:
    lab.empty()
    due = time.time() + AHEAD_S
    peer.put(peer.best, 0, 1, at=due)  # loads what the library has for the server
    lab.empty()
    empty = lab.memory()
    peer.put(peer.best, 0, JOBS, at=due, step=STEP_S, seconds=2 * LONGEST_S)
    return {"bytes": (lab.memory() - empty) / JOBS}


def _floor(lab: Lab) -> Row:
    lab.empty()
    empty, due = lab.memory(), time.time() + AHEAD_S
    for first in range(0, JOBS, 500):
        batch = range(first, first + 500)
        lab.client.zadd("floor", {f"{n:020}": round((due + n) * 1e6) for n in batch})
    return {"bytes": (lab.memory() - empty) / JOBS}
