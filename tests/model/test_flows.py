"""Any graph of jobs that wait for each other, with any ends in any order, against a model.

A job runs once its condition holds and never before, once, and beside no other of its group; what
can run no more is cancelled; when all has ended, nothing is blocked and nobody is left to be told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from bide.client import blocking
from bide.model.job import Claimed
from bide.model.options import Constraints
from bide.model.payload.body import Body, encode_body
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Outcome, Settle
from bide.protocol.keys import keys_of
from tests.support.invariants import assert_legal

KEYS = keys_of("mail")
BODY = encode_body(Body("app.tasks:send"))
LEASE_US = 600_000_000
ENDS: dict[str, Outcome] = {"C": "complete", "F": "fail", "X": "cancel"}
Flags = Literal["-", "-e", "-f"]
Drawn = tuple[list[int], Flags, str]


@dataclass
class Node:
    """A job, as the model has it."""

    parents: list[int]
    flags: Flags
    group: str = ""
    state: str = "due"
    waits: set[int] = field(default_factory=set)


@dataclass(frozen=True)
class Graph:
    """Jobs, each with those before it that it waits for, and its group; what happens, to which."""

    nodes: list[Drawn]
    late: int
    """From this one on, jobs are enqueued after half of the events."""
    events: list[tuple[int, str]]


@st.composite
def graphs(draw: Any) -> Graph:
    count = draw(st.integers(2, 8))
    nodes = []
    for i in range(count):
        parents = draw(st.lists(st.integers(0, i - 1), unique=True, max_size=3)) if i else []
        flags = draw(st.sampled_from(["-", "-", "-e", "-f"]))
        nodes.append((parents, flags, draw(st.sampled_from(["", "", "g", "h"]))))
    event = st.tuples(st.integers(0, count - 1), st.sampled_from("CCFXRxd"))
    return Graph(nodes, draw(st.integers(1, count)), draw(st.lists(event, max_size=20)))


class Model:
    """What should be."""

    def __init__(self) -> None:
        self.nodes: dict[int, Node] = {}
        self._ended: list[int] = []

    def add(self, i: int, parents: list[int], flags: Flags, group: str) -> None:
        node = self.nodes[i] = Node(parents, flags, group)
        node.waits = {p for p in parents if self.nodes[p].state in ("due", "active", "blocked")}
        if not parents:
            return
        node.state = "blocked"
        for parent in parents:
            if parent not in node.waits and self._resolve(i, self.nodes[parent].state):
                return
        if not node.waits:
            self._all_met(i)

    def end(self, i: int, state: str) -> None:
        """A job ends; what follows from it, for all its children before any of theirs."""
        self.nodes[i].state = state
        self._ended.append(i)
        if len(self._ended) > 1:
            return
        while self._ended:
            parent = self._ended[0]
            for j, node in self.nodes.items():
                if node.state == "blocked" and parent in node.waits:
                    node.waits.discard(parent)
                    if not self._resolve(j, self.nodes[parent].state) and not node.waits:
                        self._all_met(j)
            self._ended.pop(0)

    def _resolve(self, i: int, state: str) -> bool:
        """Whether this end decides what becomes of a child."""
        outcome = {"completed": "C", "failed": "F"}.get(state, "X")
        effect = Constraints.read(b"d=" + self.nodes[i].flags.encode()).effect(outcome)
        if effect == "run":
            self.nodes[i].state = "due"
        elif effect == "cancel":
            self.end(i, "cancelled")
        return effect != "met"

    def _all_met(self, i: int) -> None:
        if self.nodes[i].flags == "-f":
            self.end(i, "cancelled")
        else:
            self.nodes[i].state = "due"


class Play:
    """The server, and the model beside it."""

    def __init__(self, client: blocking.Client) -> None:
        self.client = client
        self.model = Model()
        self.seq = 0
        self.held: dict[int, Claimed] = {}
        self.runs: list[int] = []

    def add(self, first: int, nodes: list[Drawn]) -> None:
        jobs = []
        for i, (parents, flags, group) in enumerate(nodes, first):
            alive = [p for p in parents if p not in self.model.nodes or self._exists(p)]
            self.model.add(i, alive, flags, group)
            constraints = " ".join([f"g={group}"] * bool(group) + [f"d={flags}"] * bool(alive))
            names = tuple(f"j{p}" for p in alive)
            jobs.append(Prepared(f"j{i}", "+0", 5, BODY, constraints=constraints, parents=names))
        for trip in enqueue_commands.enqueue_many(KEYS, jobs):
            self.client.run_many(trip)

    def _exists(self, i: int) -> bool:
        return self.model.nodes[i].state != "gone"

    def claim(self) -> None:
        while True:
            self.seq += 1
            claim = self.client.run(worker_commands.claim(KEYS, "w", self.seq, 100, LEASE_US, 0))
            for job in claim.jobs:
                i = int(job.id[1:])
                assert self.model.nodes[i].state == "due", f"{job.id} ran, and was not to"
                self.model.nodes[i].state = "active"
                self.held[i] = job
                self.runs.append(i)
            if not claim.jobs:
                break
        running = [self.model.nodes[i].group for i in self.held if self.model.nodes[i].group]
        assert len(running) == len(set(running)), "two of a group run"
        left = {node.group for node in self.model.nodes.values() if node.state == "due"}
        assert left <= {*running}, "its group is free, and it does not run"

    def do(self, i: int, what: str) -> None:
        node = self.model.nodes.get(i)
        if node is None:
            return
        if what in ENDS and i in self.held:
            job = self.held.pop(i)
            self.client.run(worker_commands.settle(KEYS, [Settle(job.id, job.token, ENDS[what])]))
            self.model.end(i, {"C": "completed", "F": "failed", "X": "cancelled"}[what])
        elif what == "R" and i in self.held:
            job = self.held.pop(i)
            self.client.run(
                worker_commands.settle(KEYS, [Settle(job.id, job.token, "retry", "+0")])
            )
            node.state = "due"
        elif what == "x" and node.state in ("due", "blocked"):
            self.client.run(job_commands.cancel(KEYS, [f"j{i}"]))
            self.model.end(i, "cancelled")
        elif what == "d" and node.state not in ("active", "gone"):
            self.client.run(job_commands.delete(KEYS, [f"j{i}"]))
            had_ended = node.state in ("completed", "failed", "cancelled")
            if not had_ended:
                self.model.end(i, "gone")
            node.state = "gone"

    def compare(self) -> None:
        """What is on the server is what the model says."""
        seen = {}
        for i in self.model.nodes:
            (snapshot,) = self.client.run(job_commands.fetch(KEYS, [f"j{i}"]))
            state = str(snapshot.state) if snapshot else "gone"
            seen[i] = "due" if state == "waiting" else state
        assert seen == {i: node.state for i, node in self.model.nodes.items()}


@pytest.fixture
def client(one_url: str) -> Iterator[blocking.Client]:
    client = blocking.Client(one_url)
    yield client
    client.close()


@pytest.mark.slow
@settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(graph=graphs())
@example(graph=Graph([([], "-", ""), ([0], "-", ""), ([0, 1], "-f", "")], 1, [(0, "F")]))
def test_a_job_runs_once_its_condition_holds(
    graph: Graph, client: blocking.Client, direct: redis.Redis
) -> None:
    direct.flushall()
    play = Play(client)
    play.add(0, graph.nodes[: graph.late])
    half = len(graph.events) // 2
    for number, (i, what) in enumerate(graph.events):
        if number == half:
            play.add(graph.late, graph.nodes[graph.late :])
        play.claim()
        play.do(i, what)
        play.compare()
        assert_legal(direct, "mail")
    if len(play.model.nodes) < len(graph.nodes):
        play.add(graph.late, graph.nodes[graph.late :])
    while True:  # whatever is left, completes
        play.claim()
        if not play.held:
            break
        play.do(next(iter(play.held)), "C")
        play.compare()
    states = {node.state for node in play.model.nodes.values()}
    assert states <= {"completed", "failed", "cancelled", "gone"}
    edges = assert_legal(direct, "mail").edges
    assert {member for member in edges if member[0] != "="} == set()
