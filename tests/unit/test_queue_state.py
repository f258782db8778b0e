"""One queue as a worker sees it: which claim is next, and when."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest

from bide.model.history import MAX_LINES
from bide.protocol.commands.worker import (
    MAX_ERROR_BYTES,
    MAX_ERRORS,
    MAX_NOTED,
    MAX_SETTLES,
    Claim,
    JobNote,
    Settle,
)
from bide.protocol.keys import keys_of
from bide.worker.queue_state import MAX_BYTES as MAX_SAID_BYTES
from bide.worker.queue_state import QueueState

NOW = 1_795_214_038_547_684
EMPTY = Claim(NOW, NOW + 2_000_000, 0, False, False, False, [])
FULL = EMPTY._replace(until_us=0)
STALE = Claim(0, 0, 0, True, False, False, [], stale=True)


@pytest.fixture
def state() -> QueueState:
    return QueueState(keys_of("mail"), "me", 10_000_000)


def seq(state: QueueState) -> int:
    number = state.claim(5, 2).args[1]
    assert isinstance(number, int)
    return number


def test_a_new_queue_is_due_at_once(state: QueueState) -> None:
    assert state.is_due(0.0)


def test_a_claim_is_the_same_until_its_reply_has_come(state: QueueState) -> None:
    assert state.claim(5, 2) == state.claim(5, 2)
    first = seq(state)
    state.claimed(EMPTY, 0.0, 0.0)
    assert seq(state) == first + 1


def test_a_claim_says_who_how_many_and_how_busy(state: QueueState) -> None:
    command = state.claim(5, 2)
    assert command.keys[0] == "bide:{mail}"
    assert command.args[0] == "me"
    assert command.args[2:5] == (5, 10_000_000, 2)


def test_time_is_counted_from_when_the_claim_was_sent(state: QueueState) -> None:
    state.claimed(EMPTY, 100.0, 100.0)
    assert not state.is_due(101.999)
    assert state.is_due(102.0)


@pytest.mark.parametrize("reply", [FULL, STALE, EMPTY._replace(more=True)])
def test_whoever_knows_that_there_may_be_more_looks_again_at_once(
    state: QueueState, reply: Claim
) -> None:
    state.claimed(reply, 100.0, 100.0)
    assert state.is_due(100.0)


def test_a_stale_reply_is_followed_by_a_later_number(state: QueueState) -> None:
    first = seq(state)
    state.claimed(STALE, 0.0, 0.0)
    assert seq(state) > first


def test_only_a_deadline_wants_punctuality(state: QueueState) -> None:
    state.claimed(EMPTY._replace(deadline_us=EMPTY.until_us), 0.0, 0.0)
    assert state.exact
    state.claimed(EMPTY._replace(deadline_us=EMPTY.until_us - 50_000), 0.0, 0.0)
    assert not state.exact


def test_a_wakeup_makes_it_due(state: QueueState) -> None:
    state.claimed(EMPTY, 100.0, 100.0)
    state.on_wakeup("-")
    assert state.is_due(100.0)
    assert state.is_woken


def test_a_claim_answers_the_wakeups_before_it(state: QueueState) -> None:
    state.on_wakeup("-")
    state.claim(5, 0)
    state.claimed(EMPTY, 100.0, 100.0)
    assert not state.is_woken
    assert not state.is_due(100.0)


def test_but_not_those_that_came_while_it_was_under_way(state: QueueState) -> None:
    """The job they speak of may not have been there yet."""
    state.claim(5, 0)
    state.on_wakeup("-")
    state.claimed(EMPTY, 100.0, 100.0)
    assert state.is_woken
    assert state.is_due(100.0)


def test_a_worker_that_hears_its_own_call_twice_is_the_only_one(state: QueueState) -> None:
    """It calls for a backup; with nobody else there, it would call itself for ever."""
    state.claimed(EMPTY, 100.0, 100.0)
    state.on_wakeup("me")
    assert state.is_due(100.0), "once: the next call goes to the one that listens longest"
    state.claim(5, 0)
    state.claimed(EMPTY, 100.0, 100.0)
    state.on_wakeup("me")
    assert not state.is_due(100.0)


@pytest.mark.parametrize("other", ["-", "another"])
def test_what_others_say_in_between_starts_that_anew(state: QueueState, other: str) -> None:
    for caller in ("me", other, "me"):
        state.claim(5, 0)
        state.claimed(EMPTY, 100.0, 100.0)
        state.on_wakeup(caller)
        assert state.is_due(100.0)


# -- outcomes


def pile(state: QueueState, *settles: Settle) -> None:
    state.settles.extend(settles)


def test_outcomes_are_kept_until_they_are_sent(state: QueueState) -> None:
    retry = Settle("a", NOW, "retry", "+5", b"{}")
    pile(state, retry, Settle("b", NOW, "complete"))
    taken = state.take_settles()
    assert [s.id for s in taken] == ["a", "b"]
    assert not state.settles
    command = state.settle(taken)
    assert command.args[:5] == ["a", f"{NOW:016d}", "retry", "+5", b"{}"]


def test_what_runs_again_at_once_is_claimed_with_the_call_that_says_so(
    state: QueueState,
) -> None:
    state.check = False
    assert not state.is_due(0.0, [Settle("a", NOW, "complete"), Settle("b", NOW, "retry", "+5")])
    for again in (Settle("c", NOW, "release"), Settle("d", NOW, "retry", "+0")):
        assert state.is_due(0.0, [again])


def test_as_many_are_sent_as_fit_one_call_by_count(state: QueueState) -> None:
    settles = [Settle(str(i), 1, "complete") for i in range(2 * MAX_SETTLES + 1)]
    pile(state, *settles)
    taken = [state.take_settles() for _ in range(4)]
    assert [len(some) for some in taken] == [MAX_SETTLES, MAX_SETTLES, 1, 0]
    assert [s for some in taken for s in some] == settles


def test_and_by_bytes(state: QueueState) -> None:
    settles = [Settle(str(i), 1, "complete", "", b"x" * 900_000) for i in range(10)]
    pile(state, *settles)
    taken = [state.take_settles() for _ in range(4)]
    assert [len(some) for some in taken] == [4, 4, 2, 0]
    assert [s for some in taken for s in some] == settles


def test_and_by_errors(state: QueueState) -> None:
    fails = [Settle(str(i), 1, "fail", "", b"{}") for i in range(MAX_ERRORS + 5)]
    completes = [Settle(str(i), 1, "complete", "", b"1") for i in range(20)]
    pile(state, *completes, *fails)
    assert [len(state.take_settles()) for _ in range(3)] == [20 + MAX_ERRORS, 5, 0]


def test_and_by_the_bytes_of_errors(state: QueueState) -> None:
    large = b"x" * (MAX_ERROR_BYTES // 10)
    pile(state, *(Settle(str(i), 1, "retry", "+5", large) for i in range(25)))
    assert [len(state.take_settles()) for _ in range(4)] == [10, 10, 5, 0]


def test_those_that_do_not_fit_are_not_even_read(
    state: QueueState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flood of outcomes is not copied for each round trip."""

    class Counted(deque[Settle]):
        reads = 0

        def __iter__(self) -> Iterator[Settle]:
            for settle in super().__iter__():
                Counted.reads += 1
                yield settle

    outcomes = Counted(Settle(str(i), 1, "complete") for i in range(50_000))
    monkeypatch.setattr(state, "settles", outcomes)
    taken = state.take_settles()
    assert Counted.reads <= MAX_SETTLES + 1
    assert len(taken) + len(outcomes) == 50_000


def test_what_is_put_back_is_sent_first_in_its_order(state: QueueState) -> None:
    first, second, third = (Settle(id, 1, "complete") for id in "abc")
    pile(state, first, second)
    taken = state.take_settles()
    pile(state, third)
    state.put_back(taken)
    assert state.take_settles() == [first, second, third]


def test_one_that_is_larger_than_a_call_goes_alone(state: QueueState) -> None:
    big = Settle("big", 1, "complete", "", b"x" * 5_000_000)
    small = Settle("small", 1, "complete")
    pile(state, small, big, small)
    assert [state.take_settles() for _ in range(4)] == [[small], [big], [small], []]


# -- what jobs say


def say(state: QueueState, *said: JobNote) -> None:
    for one in said:
        state.notes.add(one)


def sent(state: QueueState) -> list[list[tuple[str, str, bytes]]]:
    """Call by call: id, kind and text of each note."""
    calls = [command.args for command in state.take_notes()]
    return [list(zip(args[::4], args[2::4], args[3::4], strict=True)) for args in calls]  # type: ignore[arg-type]


def line(id: str, text: bytes = b'"x"') -> JobNote:
    return JobNote(id, NOW, "L", text)


def test_what_jobs_say_is_sent_once_in_its_order(state: QueueState) -> None:
    say(state, line("a", b'"1"'), line("b", b'"2"'), line("a", b'"3"'))
    assert sent(state) == [[("a", "L", b'"1"'), ("a", "L", b'"3"'), ("b", "L", b'"2"')]]
    assert sent(state) == []
    assert not state.notes.waiting


def test_of_progress_only_the_latest_is_sent(state: QueueState) -> None:
    say(state, *(JobNote("a", NOW, "P", b"[0.%d]" % i) for i in range(5)), line("a"))
    assert sent(state) == [[("a", "L", b'"x"'), ("a", "P", b"[0.4]")]]


def test_of_lines_only_those_that_the_server_would_keep(state: QueueState) -> None:
    say(state, *(line("a", b"%d" % i) for i in range(MAX_LINES + 5)))
    assert [text for _, _, text in sent(state)[0]] == [b"%d" % i for i in range(5, MAX_LINES + 5)]


def test_one_call_adds_to_the_notes_of_a_few_jobs(state: QueueState) -> None:
    say(state, *(line(str(i)) for i in range(2 * MAX_NOTED + 1)))
    assert [len(call) for call in sent(state)] == [MAX_NOTED, MAX_NOTED, 1]


def test_what_is_too_much_for_a_round_trip_goes_with_the_next(state: QueueState) -> None:
    texts = [b"%d" % i + b"x" * (MAX_SAID_BYTES // 4) for i in range(10)]
    say(state, *(line(str(i), text) for i, text in enumerate(texts)))
    found: list[bytes] = []
    trips = 0
    while state.notes.waiting:
        found += [text for call in sent(state) for _, _, text in call]
        trips += 1
    assert found == texts
    assert trips == 3


def test_the_first_to_say_something_since_the_last_trip_is_to_tell_the_loop(
    state: QueueState,
) -> None:
    assert [state.notes.add(line("a")) for _ in range(3)] == [True, False, False]
    state.take_notes()
    assert not state.notes.waiting
    assert state.notes.add(line("a"))


def test_a_flood_of_one_job_drops_no_line_of_another(state: QueueState) -> None:
    say(state, line("quiet"), *(line("loud", b"%d" % i) for i in range(10_000)), line("quiet"))
    kept = [id for call in sent(state) for id, _, _ in call]
    assert kept.count("quiet") == 2
    assert kept.count("loud") == MAX_LINES


# -- what is logged of an outage


def test_a_new_reason_is_logged_at_once_and_an_old_one_seldom(state: QueueState) -> None:
    logged = [state.failed(reason) for reason in ["refused", "refused", "loading", "refused"]]
    assert logged == [True, False, True, False]


def test_a_reason_that_returns_is_logged_soon(state: QueueState) -> None:
    reasons = ["refused"] * 9 + ["loading"] + ["refused"] * 20
    logged = [at for at, reason in enumerate(reasons) if state.failed(reason)]
    assert logged == [0, 9, 14]


def test_reasons_that_alternate_do_not_fill_the_log(state: QueueState) -> None:
    reasons = ["refused", "loading"] * 15
    logged = [at for at, reason in enumerate(reasons) if state.failed(reason)]
    assert logged == [0, 1, 6, 11, 16, 21, 26]
    assert {reasons[at] for at in logged} == {"refused", "loading"}


def test_a_reason_is_logged_again_while_an_outage_lasts(state: QueueState) -> None:
    logged = [state.failed("refused") for _ in range(91)]
    assert [at for at, is_logged in enumerate(logged) if is_logged] == [0, 30, 60, 90]


def test_a_number_does_not_make_a_reason_new(state: QueueState) -> None:
    assert state.failed("MOVED 3999 10.0.0.1")
    assert not state.failed("MOVED 4000 10.0.0.1")


def test_the_next_outage_is_logged_from_its_start(state: QueueState) -> None:
    state.failed("refused")
    state.succeeded()
    assert state.failures == 0
    assert state.failed("refused")


@pytest.mark.parametrize(
    ("later_us", "read_us", "clock"),
    [
        (1_000_100, 0, (NOW, 100.0)),  # read once, and it agrees with the clock read behind a claim
        (1_000_100, NOW + 1_000_150, (NOW + 1_000_150, 101.0)),  # read twice
        (3_600_000_000, 0, (NOW + 3_600_000_000, 101.0)),  # the server's clock has been set
    ],
)
def test_the_clock_is_that_of_the_claim_that_told_it_best(
    state: QueueState, later_us: int, read_us: int, clock: tuple[int, float]
) -> None:
    state.claimed(EMPTY._replace(read_us=NOW), 99.999, 100.001)
    later = EMPTY._replace(now_us=NOW + later_us, read_us=read_us)
    state.claimed(later, 100.999, 101.001)
    server_us, at = state.clock
    assert (server_us, round(at, 3)) == (clock[0], round(clock[1], 3))
