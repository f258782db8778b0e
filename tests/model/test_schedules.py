"""Schedules in any order of what may happen to them, against a plain Python model.

What is fired is the model's list, in its order, neither less nor more, whichever replies are lost.
The clock stands still but for what the test moves it by, so the model knows each moment exactly.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bide.client import blocking
from bide.model.payload.body import of_schedule
from bide.model.schedule import Missed, Schedule, Timing
from bide.protocol.commands import schedules as schedule_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.schedules import Draft
from bide.protocol.keys import keys_of
from bide.protocol.scripts import SHARED_CLOCK
from tests.support.probe import BODY, SECOND

BEGIN = 1_761_436_800_000_000
"""A Sunday in October on which Paris puts its clocks back, at 00:00 UTC."""

MINUTE = 60 * SECOND
AT_ONCE = 20
GRACE = MINUTE

_prefixes = itertools.count()


def timings() -> st.SearchStrategy[Timing]:
    bounds = {
        "start_us": st.sampled_from([0, 0, 0, BEGIN - 90 * SECOND, BEGIN + 95 * SECOND]),
        "end_us": st.sampled_from([0, 0, 0, BEGIN + 300 * SECOND, BEGIN + 7200 * SECOND]),
        "limit": st.sampled_from([0, 0, 0, 1, 3, 30]),
    }
    every = st.sampled_from([SECOND // 2, 7 * SECOND, 61 * SECOND, 3600 * SECOND])
    crons = st.sampled_from(["* * * * *", "*/20 * * * *", "30 2 * * *", "0 4 * * *"])
    at = st.lists(st.integers(-100, 8000), min_size=1, max_size=9, unique=True)
    moments = at.map(lambda found: tuple(sorted(BEGIN + n * SECOND for n in found)))
    return st.one_of(
        st.builds(Timing, every_us=every, **bounds),
        st.builds(Timing, cron=crons, tz=st.just("Europe/Paris"), **bounds),
        st.builds(Timing, at_us=moments, **bounds),
    )


class Model:
    """A schedule as its words have it."""

    def __init__(self, timing: Timing, missed: Missed, now: int) -> None:
        self.missed = missed
        self.fired: list[int] = []
        self.timing = timing
        self.seen = 0
        self.count = 0
        self.paused = False
        self.set(timing, now)

    def set(self, timing: Timing, now: int) -> None:
        self.timing = timing
        self.seen = max(now, timing.start_us - 1, self.fired[-1] if self.fired else 0)
        self.first = timing.start_us or now + timing.every_us
        self.count = 0

    def times(self, until: int) -> Iterator[int]:
        """All that are to come until then."""
        timing = self.timing
        every = itertools.count(self.first, timing.every_us) if timing.every_us else iter(())
        for at in every if timing.every_us else timing.times(None, self.seen):
            if at > until or (timing.end_us and at > timing.end_us):
                return
            if at > self.seen:
                yield at

    def claim(self, now: int) -> None:
        if self.paused:
            return
        left = self.timing.limit - self.count if self.timing.limit else 10**9
        most = min(AT_ONCE, left) if self.missed == "all" else None
        due = list(itertools.islice(self.times(now), most))
        if not due or not left:
            return
        if self.missed == "all":
            chosen = due
            self.seen = due[-1]
        else:
            chosen = due[-1:] if self.missed == "once" or now - due[-1] <= GRACE else []
            self.seen = due[-1]
        self.fired += chosen
        self.count += len(chosen)

    def resume(self, now: int) -> None:
        if self.paused:
            self.seen = max(self.seen, now)
        self.paused = False


class Real:
    """The same schedule on a server."""

    def __init__(
        self, client: blocking.Client, direct: Any, timing: Timing, missed: Missed
    ) -> None:
        prefix = f"m{next(_prefixes)}"
        self.client = client
        self.direct = direct
        self.keys = keys_of("mail", prefix)
        self.clock = f"{prefix}:test_clock"
        self.now = BEGIN
        self.missed = missed
        self.seq = 0
        self.fired: list[int] = []
        self.move(0)
        self.set(timing)

    def move(self, us: int) -> None:
        self.now += us
        self.direct.hset(self.clock, "held_us", self.now)

    def set(self, timing: Timing) -> None:
        body = of_schedule(BODY, "tick")
        draft = Draft("tick", timing, self.missed, 0, 5, "app.tasks:send", body)
        self.client.run(schedule_commands.set_schedule(self.keys, draft))

    def claim(self, *, again: bool = False) -> bool:
        """A claim; whether the schedule wants more times."""
        self.seq += not again
        claim = self.client.run(worker_commands.claim(self.keys, "w", self.seq, 0, 10 * SECOND, 0))
        jobs = self.direct.hkeys(self.keys["jobs"])
        self.fired += sorted(int(id[len("tick@") :]) for id in jobs)
        # What is fired twice is to be seen: so the server is to have forgotten the first.
        self.direct.delete(self.keys["jobs"], *self.keys.names["due"])
        return bool(claim.thin)

    def refill(self) -> None:
        page = self.client.run(schedule_commands.read_schedules(self.keys, ["tick"]))
        self.client.run_many(schedule_commands.refills(self.keys, page))

    def read(self) -> Schedule:
        (schedule,) = self.client.run(
            schedule_commands.read_schedules(self.keys, ["tick"])
        ).schedules
        return schedule


def play(real: Real, model: Model, steps: list[tuple[str, Any]], other: Timing) -> None:
    for verb, value in steps:
        if verb == "move":
            real.move(value)
        elif verb == "again" and real.seq:
            real.claim(again=True)
        elif verb == "refill":
            real.refill()
        elif verb == "pause":
            real.client.run(schedule_commands.pause_schedule(real.keys, "tick", True))
            model.paused = True
        elif verb == "resume":
            real.client.run(schedule_commands.pause_schedule(real.keys, "tick", False))
            model.resume(real.now)
        elif verb == "set":
            real.set(model.timing)
        elif verb == "change" and other != model.timing:
            real.set(other)
            model.set(other, real.now)
        elif verb == "claim":
            if not value:  # who is asked for more times dies, and others go on
                for _ in range(3):
                    real.claim()
                    model.claim(real.now)
                real.refill()
            for _ in range(12):
                if real.claim():
                    real.refill()
                model.claim(real.now)
        assert real.fired == model.fired, (verb, value)


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.booleans()),
        st.tuples(st.just("claim"), st.just(True)),
        st.tuples(
            st.just("move"),
            st.sampled_from([1, SECOND // 2, SECOND, 9 * SECOND, MINUTE, 20 * MINUTE, 45 * MINUTE]),
        ),
        st.tuples(
            st.sampled_from(["again", "refill", "pause", "resume", "resume", "set", "change"]),
            st.none(),
        ),
    ),
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    timing=timings(),
    other=timings(),
    missed=st.sampled_from(["skip", "once", "all"]),
    steps=STEPS,
)
def test_no_firing_is_lost_or_doubled(
    one_url: str, direct: redis.Redis, timing: Timing, other: Timing, missed: Missed, steps: Any
) -> None:
    client = blocking.Client(one_url, clock=SHARED_CLOCK)
    try:
        real, model = Real(client, direct, timing, missed), Model(timing, missed, BEGIN)
        play(real, model, steps, other)
        real.client.run(schedule_commands.pause_schedule(real.keys, "tick", False))
        model.resume(real.now)
        for _ in range(4):
            real.move(33 * MINUTE)
            play(real, model, [("claim", True)], other)
        assert real.read().fired == model.count
        assert len(set(real.fired)) == len(real.fired)
    finally:
        client.close()


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_a_claim_whose_reply_is_lost_has_fired_and_fires_no_more(
    one_url: str, direct: redis.Redis, missed: Missed
) -> None:
    client = blocking.Client(one_url, clock=SHARED_CLOCK)
    timing = Timing(every_us=SECOND)
    real, model = Real(client, direct, timing, missed), Model(timing, missed, BEGIN)
    steps: list[tuple[str, Any]] = [("move", SECOND), ("claim", True), ("again", None)]
    play(real, model, steps * 5, timing)
    assert len(real.fired) == 5
    client.close()
