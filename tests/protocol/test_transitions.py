"""The table of transitions is what the scripts do: every verb, from every state.

Where the table has an entry, the verb leads there; where it has none, the verb changes nothing.
"""

from __future__ import annotations

from itertools import product

import pytest

from bide.model.job import TRANSITIONS, Claimed, State
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Outcome
from tests.support.probe import BODY, LEASE, SECOND, Probe

NEVER_CLAIMED = Claimed("a", BODY, 1, 1, 0, 0, 0)
LATER = f"+{60 * SECOND}"

ALLOWED = [
    (verb, start, end)
    for verb, (starts, ends) in TRANSITIONS.items()
    for start, end in product(starts, ends)
]
FORBIDDEN = [
    (verb, state)
    for verb, (starts, _) in TRANSITIONS.items()
    for state in State
    if state not in starts
]


def add(q: Probe, verb: str, when: str = "+0") -> None:
    constraints = f"x=@{q.now + 5 * SECOND}" if verb == "expire" else ""
    q.add_many(Prepared("a", when, 5, BODY, constraints=constraints))


def bring(q: Probe, state: State, end: State | None = None, verb: str = "") -> Claimed:
    """Make a job that is in a state, about to go to another; how it was last claimed."""
    if verb == "pop" and end is State.COMPLETED:
        q.push("a")
        return NEVER_CLAIMED
    if verb == "pop" and state is not State.BLOCKED:  # a job in a queue of data
        q.raw.hset(q.keys["meta"], "kind", "data")
    if state is State.CANCELLED:
        add(q, verb)
        q.cancel("a")
        return NEVER_CLAIMED
    if state is State.BLOCKED:
        constraints = f"x=@{q.now + 5 * SECOND} d=-" if verb == "expire" else "d=-"
        q.add("p", when=LATER, priority=9)
        when = LATER if end is State.DELAYED else "+0"
        q.add_many(Prepared("a", when, 5, BODY, constraints=constraints, parents=("p",)))
        if verb == "pop":  # which lets nothing wait any more
            q.raw.hset(q.keys["meta"], "kind", "data")
        return NEVER_CLAIMED
    if state in (State.DELAYED, State.WAITING):
        add(q, verb, LATER if state is State.DELAYED else "+0")
        return NEVER_CLAIMED
    add(q, verb)
    if end is State.FAILED:  # one more crash, and it has failed
        for _ in range(4):
            q.claim("doomed", 1)
            q.move(LEASE + 1)
            q.claim("undertaker", 0)
    (job,) = q.claim("w1", 1).jobs
    if end is State.CANCELLED:
        assert q.cancel("a") == ["asked"]
    if state is not State.ACTIVE:
        q.settle(job, "complete" if state is State.COMPLETED else "fail")
    return job


def apply(q: Probe, verb: str, job: Claimed, end: State) -> None:
    when = LATER if end is State.DELAYED else "+0"
    outcomes: dict[str, Outcome] = {
        "complete": "complete",
        "retry": "retry",
        "fail": "fail",
        "snooze": "snooze",
        "release": "release",
        "crash": "crash",
    }
    if verb in outcomes:
        q.settle(job, outcomes[verb], when if verb in ("retry", "snooze") else "")
    elif verb == "revive":
        q.retry("a", when=when)
    elif verb == "pop":
        q.pop("c1", 1)
    elif verb == "reject":
        q.run(
            worker_commands.reject_items(q.keys, [("a", b'{"type":"BadSignature","message":""}')])
        )
    elif verb == "claim":
        q.claim("w2", 1)
    elif verb == "extend":
        q.extend(job)
    elif verb == "reclaim":
        q.move(LEASE + 1)
        q.claim("w2", 0)
    elif verb == "expire":
        q.move(6)
        q.claim("w2", 0)
    elif verb == "cancel":
        q.cancel("a")
        q.settle(job, "cancel")
    elif verb == "free":
        if q.where("p"):
            q.promote("p")
            (parent,) = q.claim("w9", 1).jobs
            q.settle(parent, "complete")
    elif verb == "drop":
        q.cancel("p")
    elif verb == "reschedule":
        q.reschedule("a", when)
    else:
        assert verb == "promote"
        q.promote("a")


def state_of(q: Probe) -> State:
    snapshot = q.fetch("a")
    assert snapshot is not None
    return snapshot.state


@pytest.mark.parametrize(("verb", "start", "end"), ALLOWED)
def test_a_verb_leads_where_the_table_says(q: Probe, verb: str, start: State, end: State) -> None:
    job = bring(q, start, end, verb)
    assert state_of(q) is start
    apply(q, verb, job, end)
    assert state_of(q) is end


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "state"), FORBIDDEN)
def test_and_from_no_other_state_anywhere(q: Probe, verb: str, state: State) -> None:
    if (verb, state) == ("reschedule", State.BLOCKED):
        pytest.skip("it stays blocked, and says when it is due then: see test_deps.py")
    job = bring(q, state, verb=verb)
    for end in TRANSITIONS[verb][1]:
        before = q.holding()
        apply(q, verb, job, end)
        after = q.holding()
        assert state_of(q) is state
        assert after.sets == before.sets
        assert after.hashes == before.hashes
