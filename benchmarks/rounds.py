"""Who is measured, and how they take turns: round after round, for as long as there is time."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from benchmarks.lab import Lab
from benchmarks.peer import Marks, Peer, complain, open_peer
from benchmarks.report import Aim, Row, Rows, median, spread

PEERS = (
    "bide",
    "bullmq",
    "rq",
    "celery",
    "dramatiq",
    "huey",
    "arq",
    "saq",
    "taskiq",
    "streaq",
    "docket",
)


class Company(NamedTuple):
    """The peers that are here, their producers started, and the marks that all their jobs leave."""

    peers: dict[str, Peer]
    marks: Marks

    def told(self) -> str:
        """What each peer promises, for a speed means little without it."""
        lines = []
        for peer in self.peers.values():
            about = peer.about
            lines += [
                f"{peer.name} {about['version']}: acks {about['acks']}.",
                f"  Delayed jobs wait in {about['delays']}.",
            ]
        return "\n".join(lines)


@functools.cache
def company(lab: Lab) -> Company:
    """Install and start all peers, for as long as the lab is open; say which cannot be."""
    directory = lab.stack.enter_context(TemporaryDirectory())
    marks = Marks(Path(directory, "marks"))

    def start(name: str) -> Peer | None:
        try:
            return lab.stack.enter_context(open_peer(name, lab.server.url, marks))
        except (RuntimeError, OSError) as error:
            complain(name, error)
            return None

    with ThreadPoolExecutor(2) as pool:
        started = pool.map(start, PEERS)
    return Company({peer.key: peer for peer in started if peer}, marks)


def in_turn(
    seconds: float, measures: Mapping[str, Callable[[], Row]], most: int = 99
) -> dict[str, list[Row]]:
    """Measure all in turn for as long as another round will probably end in time; at least once.

    One that fails is not measured again, and that is said.
    """
    left, rounds = dict(measures), dict[str, list[Row]]()
    begun, longest = time.monotonic(), 0.0
    for _ in range(most):
        start = time.monotonic()
        for name, one in list(left.items()):
            try:
                rounds.setdefault(name, []).append(one())
            except RuntimeError as error:
                complain(name, error)
                del left[name]
        longest = max(longest, time.monotonic() - start)
        if time.monotonic() + longest > begun + seconds:
            break
    return {name: measured for name, measured in rounds.items() if measured}


def medians(rounds: Mapping[str, Sequence[Row]], column: str) -> Rows:
    """The median of each figure, and how far one of them spreads."""
    return {name: median(rows) | spread(rows, column) for name, rows in rounds.items()}


class Pair(NamedTuple):
    """What is held against what, and how many times as fast it is to be."""

    ours: str
    theirs: str
    times: float = 0


def ratios(
    rounds: Mapping[str, Sequence[Row]], pairs: Sequence[Pair], column: str
) -> tuple[Rows, list[Aim]]:
    """The ratios of pairs within each round, and whether those come near what they are to be."""
    rows: Rows = {}
    aims: list[Aim] = []
    for ours, theirs, times in pairs:
        made: list[Row] = [
            {"times": one[column] / other[column]}
            for one, other in zip(rounds.get(ours, ()), rounds.get(theirs, ()), strict=False)
            if column in one and column in other
        ]
        if made:
            name = f"{ours} / {theirs}"
            rows[name] = median(made) | spread(made, "times")
            if times:
                rows[name]["to reach"] = times
                aims.append(Aim(f"{name}, {column}", rows[name]["times"], at_least=times))
    return rows, aims
