"""Any order of calls, claims, outcomes and hours: each call comes to what the model says.

And whatever the model says: items are in exactly one job and in their order, one job holds a key, a
debounced job is due in time, a throttle keeps its rate, and the last call is never lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bide.model.job import Claimed
from bide.model.payload.body import Body, decode_body, encode_body
from bide.model.payload.serializers import is_batch
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import pieces
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Settle
from tests.model.dedup import SECOND, Came, DedupModel
from tests.model.server import KEYS, QUEUE, Server
from tests.support.invariants import assert_legal

FOREVER = 10**15
WAYS = {
    "u": ["uk,f", "ur,f", "ux,f", "uk,s", "ur,s", f"uk,{7 * SECOND}", f"ur,{7 * SECOND}"],
    "d": [f"d{2 * SECOND},{5 * SECOND}"],
    "t": [f"t1,{5 * SECOND}", f"t3,{5 * SECOND}"],
    "g": [f"g{2 * SECOND},{5 * SECOND},4", f"g{2 * SECOND},0,100"],
}
OUTCOMES = ("complete", "retry", "release", "fail", "cancel", "snooze")

calls = st.tuples(
    st.just("call"),
    st.sampled_from(
        [(way, f"{kind}{i}") for kind, ways in WAYS.items() for i, way in enumerate(ways)]
    ),
    st.sampled_from([0, 0, 0, 3]),
)
steps = st.one_of(
    calls,
    calls,
    st.tuples(st.just("many"), st.lists(calls, min_size=2, max_size=5), st.none()),
    st.tuples(st.just("claim"), st.sampled_from([1, 50]), st.none()),
    st.tuples(st.just("settle"), st.sampled_from(OUTCOMES), st.integers(0, 3)),
    st.tuples(st.just("cancel"), st.integers(0, 3), st.none()),
    st.tuples(st.just("again"), st.none(), st.none()),
    st.tuples(st.just("wait"), st.sampled_from([1, 2, 5, 16]), st.none()),
)


waits = st.tuples(st.just("wait"), st.integers(1, 4), st.none())


class Play:
    """A queue and its model."""

    def __init__(self, server: Server) -> None:
        server.begin()
        self.server, self.model = server, DedupModel()
        self.numbers = 0
        self.came: dict[str, list[tuple[int, int, str, str]]] = {}
        """Key -> of each call its number, its time, its word and the job's id."""
        self.dues: dict[str, int] = {}
        self._held: list[Claimed] = []
        self._seq = 0
        self._latest: tuple[int, list[Prepared], list[Any], list[Came]] | None = None

    def do(self, step: tuple[Any, Any, Any]) -> None:
        verb, what, more = step
        if verb == "call":
            self.call([step])
        elif verb == "many":
            self.call(what)
        else:
            getattr(self, f"_{verb}")(what, more)

    def call(self, steps: list[Any]) -> None:
        jobs = []
        for _, (way, key), delay in steps:
            self.numbers += 1
            body = encode_body(Body("t:t", (self.numbers,)))
            when = f"+{delay * SECOND}"
            id = f"j{self.numbers:04}"
            jobs.append(Prepared(id, when, 5, body, constraints=f"k={key} f={way}"))
        now, came = self._send(jobs)
        for job, (_, (way, key), delay), there in zip(jobs, steps, came, strict=True):
            self._agree(job, way, key, delay, now, there)
        self._latest = now, jobs, steps, came

    def _send(self, jobs: list[Prepared]) -> tuple[int, list[Came]]:
        reply = self.server.reply(enqueue_commands.enqueue(KEYS, jobs))
        self.model.now = reply[1]
        came = pieces(reply, 2, 3)
        return reply[1], [(word.decode(), due, id.decode()) for word, due, id in came]

    def _agree(self, job: Prepared, way: str, key: str, delay: int, now: int, there: Came) -> None:
        number = int(job.id[1:])
        assert there == self.model.call(way, key, job.id, number, now + delay * SECOND, now), way
        self.came.setdefault(key, []).append((number, now, there[0], there[2]))

    def _again(self, *_: Any) -> None:
        """The latest call once more, as after a lost reply; what came to nothing may now."""
        if self._latest is None:
            return
        then, jobs, steps, before = self._latest
        if self.server.run(job_commands.counts(KEYS)).now_us > then + 14 * SECOND:
            return
        now, came = self._send(jobs)
        for job, (_, (way, key), delay), first, there in zip(
            jobs, steps, before, came, strict=True
        ):
            if first[0] == "created":
                assert there == ("duplicate", 0, job.id)
            elif first[0] in ("duplicate", "rejected"):
                self._agree(job, way, key, delay, now, there)
            else:
                assert there == first
        self._latest = None

    def _claim(self, count: int, _: None) -> None:
        self._seq += 1
        claim = self.server.run(worker_commands.claim(KEYS, "w", self._seq, count, FOREVER, 0))
        for job in claim.jobs:
            known = self.model.jobs[job.id]
            known.state = "active"
            self._held.append(job)

    def _settle(self, outcome: Any, pick: int) -> None:
        if not self._held:
            return
        job = self._held.pop(pick % len(self._held))
        when = f"+{SECOND}" if outcome in ("retry", "snooze") else ""
        reply = self.server.reply(
            worker_commands.settle(KEYS, [Settle(job.id, job.token, outcome, when, b"")])
        )
        known = self.model.jobs[job.id]
        known.state = {"complete": "done", "fail": "done", "cancel": "cancelled"}.get(
            outcome, "due"
        )
        known.has_begun = known.has_begun or outcome != "release"
        if known.state == "due":
            known.due = reply[1] + SECOND if when else min(known.due, reply[1])

    def _cancel(self, pick: int, _: None) -> None:
        due = sorted(job.id for job in self.model.jobs.values() if job.state == "due")
        if due:
            id = due[pick % len(due)]
            assert self.server.run(job_commands.cancel(KEYS, [id])) == ["ok"]
            self.model.jobs[id].state = "cancelled"

    def _wait(self, seconds: int, _: None) -> None:
        self.server.move(seconds)

    def check(self) -> None:
        """What is stored is what the model has, and keeps what was promised."""
        holding = assert_legal(self.server.raw, QUEUE)
        stored = {id: numbers(body) for id, body in holding.hashes["jobs"].items()}
        assert stored == {id: job.calls for id, job in self.model.jobs.items()}
        due = {job.id: job.due for job in self.model.jobs.values() if job.state == "due"}
        assert holding.due == due
        for key, came in self.came.items():
            way = WAYS[key[0]][int(key[1:])]
            opened = [id for _, _, word, id in came if word == "created"]
            if way[0] == "g":
                batched = [number for id in opened for number in stored[id]]
                assert batched == [number for number, *_ in came], "all, once, in their order"
            elif way[0] == "u" and way.endswith(",f"):
                live = [id for id in opened if self.model.jobs[id].state in ("due", "active")]
                assert len(live) <= 1, "one at most holds the key"
            else:
                last = came[-1]
                assert last[2] == "duplicate" or last[0] in stored[last[3]], (
                    "the last is never lost"
                )


def numbers(body: bytes) -> list[int]:
    args = decode_body(body).args
    return list(args[0]) if is_batch(body) else list(args)


@pytest.fixture(scope="module")
def server(one_server: Any) -> Iterator[Server]:
    server = Server(one_server.url)
    yield server
    server.close()


on_one_server = settings(
    max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@on_one_server
@given(st.lists(steps, max_size=40))
def test_each_call_comes_to_what_the_model_says(server: Server, listed: list[Any]) -> None:
    play = Play(server)
    for step in listed:
        play.do(step)
    play.check()


@on_one_server
@given(
    st.lists(
        st.one_of(calls, st.tuples(st.just("wait"), st.integers(1, 4), st.none())), max_size=40
    )
)
def test_what_is_due_is_due_in_time_and_not_too_often(server: Server, listed: list[Any]) -> None:
    """Nobody claims anything, so each due time is the last word."""
    play = Play(server)
    for step in listed:
        play.do(step)
    due = assert_legal(server.raw, QUEUE).due
    for key, came in play.came.items():
        opened = [(now, id) for _, now, word, id in came if word == "created"]
        if key == "d0":
            first = min(now for now, _ in opened)
            latest = max(now for _, now, *_ in came)
            asked = latest + 3 * SECOND
            assert due[opened[0][1]] <= max(first + 5 * SECOND, asked)
        elif key[0] == "t":
            dues, count = sorted(due[id] for _, id in opened), (1, 3)[int(key[1:])]
            for i in range(len(dues) - count):
                assert dues[i + count] - dues[i] >= 5 * SECOND, "never more in a period"
