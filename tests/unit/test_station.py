"""One queue as a worker sees it: which claim is next, and when."""

from __future__ import annotations

import pytest

from bide.model.history import MAX_LINES
from bide.protocol.commands.worker import MAX_ERRORS, MAX_NOTED, MAX_SETTLES, Claim, JobNote, Settle
from bide.protocol.keys import keys_of
from bide.worker.notes import MAX_BYTES as MAX_SAID_BYTES
from bide.worker.queue_state import QueueState

NOW = 1_795_214_038_547_684
EMPTY = Claim(NOW, NOW + 2_000_000, 0, False, False, False, [])
FULL = EMPTY._replace(until_us=0)
STALE = Claim(0, 0, 0, True, False, False, [], stale=True)


@pytest.fixture
def station() -> QueueState:
    return QueueState(keys_of("mail"), "me", 10_000_000)


def seq(station: QueueState) -> int:
    number = station.claim(5, 2).args[1]
    assert isinstance(number, int)
    return number


def test_a_new_station_is_due_at_once(station: QueueState) -> None:
    assert station.is_due(0.0)


def test_a_claim_is_the_same_until_its_reply_has_come(station: QueueState) -> None:
    assert station.claim(5, 2) == station.claim(5, 2)
    first = seq(station)
    station.claimed(EMPTY, 0.0)
    assert seq(station) == first + 1


def test_a_claim_says_who_how_many_and_how_busy(station: QueueState) -> None:
    command = station.claim(5, 2)
    assert command.keys[0] == "bide:{mail}"
    assert command.args[0] == "me"
    assert command.args[2:5] == (5, 10_000_000, 2)


def test_time_is_counted_from_when_the_claim_was_sent(station: QueueState) -> None:
    station.claimed(EMPTY, 100.0)
    assert not station.is_due(101.999)
    assert station.is_due(102.0)


@pytest.mark.parametrize("reply", [FULL, STALE, EMPTY._replace(more=True)])
def test_whoever_knows_that_there_may_be_more_looks_again_at_once(
    station: QueueState, reply: Claim
) -> None:
    station.claimed(reply, 100.0)
    assert station.is_due(100.0)


def test_a_stale_reply_is_followed_by_a_later_number(station: QueueState) -> None:
    first = seq(station)
    station.claimed(STALE, 0.0)
    assert seq(station) > first


def test_only_a_deadline_wants_punctuality(station: QueueState) -> None:
    station.claimed(EMPTY._replace(deadline_us=EMPTY.until_us), 0.0)
    assert station.exact
    station.claimed(EMPTY._replace(deadline_us=EMPTY.until_us - 50_000), 0.0)
    assert not station.exact


def test_a_hint_makes_it_due(station: QueueState) -> None:
    station.claimed(EMPTY, 100.0)
    station.hint("-")
    assert station.is_due(100.0)
    assert station.is_woken


def test_a_claim_answers_the_hints_before_it(station: QueueState) -> None:
    station.hint("-")
    station.claim(5, 0)
    station.claimed(EMPTY, 100.0)
    assert not station.is_woken
    assert not station.is_due(100.0)


def test_but_not_those_that_came_while_it_was_under_way(station: QueueState) -> None:
    """The job they speak of may not have been there yet."""
    station.claim(5, 0)
    station.hint("-")
    station.claimed(EMPTY, 100.0)
    assert station.is_woken
    assert station.is_due(100.0)


def test_a_worker_that_hears_its_own_call_twice_is_the_only_one(station: QueueState) -> None:
    """It calls for a backup; with nobody else there, it would call itself for ever."""
    station.claimed(EMPTY, 100.0)
    station.hint("me")
    assert station.is_due(100.0), "once: the next call goes to the one that listens longest"
    station.claim(5, 0)
    station.claimed(EMPTY, 100.0)
    station.hint("me")
    assert not station.is_due(100.0)


@pytest.mark.parametrize("other", ["-", "another"])
def test_what_others_say_in_between_starts_that_anew(station: QueueState, other: str) -> None:
    for caller in ("me", other, "me"):
        station.claim(5, 0)
        station.claimed(EMPTY, 100.0)
        station.hint(caller)
        assert station.is_due(100.0)


# -- outcomes


def pile(station: QueueState, *settles: Settle) -> None:
    station.settles.extend(settles)


def test_outcomes_gather_until_they_are_sent(station: QueueState) -> None:
    retry = Settle("a", NOW, "retry", "+5", b"{}")
    pile(station, retry, Settle("b", NOW, "complete"))
    taken = station.take_settles()
    assert [s.id for s in taken] == ["a", "b"]
    assert not station.settles
    command = station.settle(taken)
    assert command.args[:5] == ["a", f"{NOW:016d}", "retry", "+5", b"{}"]


def test_what_runs_again_at_once_is_claimed_with_the_call_that_says_so(station: QueueState) -> None:
    station.check = False
    assert not station.is_due(0.0, [Settle("a", NOW, "complete"), Settle("b", NOW, "retry", "+5")])
    for again in (Settle("c", NOW, "release"), Settle("d", NOW, "retry", "+0")):
        assert station.is_due(0.0, [again])


def test_as_many_are_sent_as_fit_one_call_by_count(station: QueueState) -> None:
    settles = [Settle(str(i), 1, "complete") for i in range(2 * MAX_SETTLES + 1)]
    pile(station, *settles)
    taken = [station.take_settles() for _ in range(4)]
    assert [len(some) for some in taken] == [MAX_SETTLES, MAX_SETTLES, 1, 0]
    assert [s for some in taken for s in some] == settles


def test_and_by_bytes(station: QueueState) -> None:
    settles = [Settle(str(i), 1, "complete", "", b"x" * 900_000) for i in range(10)]
    pile(station, *settles)
    taken = [station.take_settles() for _ in range(4)]
    assert [len(some) for some in taken] == [4, 4, 2, 0]
    assert [s for some in taken for s in some] == settles


def test_and_by_errors(station: QueueState) -> None:
    fails = [Settle(str(i), 1, "fail", "", b"{}") for i in range(MAX_ERRORS + 5)]
    completes = [Settle(str(i), 1, "complete", "", b"1") for i in range(20)]
    pile(station, *completes, *fails)
    assert [len(station.take_settles()) for _ in range(3)] == [20 + MAX_ERRORS, 5, 0]


def test_what_is_put_back_is_sent_first_in_its_order(station: QueueState) -> None:
    first, second, third = (Settle(id, 1, "complete") for id in "abc")
    pile(station, first, second)
    taken = station.take_settles()
    pile(station, third)
    station.put_back(taken)
    assert station.take_settles() == [first, second, third]


def test_one_that_is_larger_than_a_call_goes_alone(station: QueueState) -> None:
    big = Settle("big", 1, "complete", "", b"x" * 5_000_000)
    small = Settle("small", 1, "complete")
    pile(station, small, big, small)
    assert [station.take_settles() for _ in range(4)] == [[small], [big], [small], []]


# -- what jobs say


def say(station: QueueState, *said: JobNote) -> None:
    for one in said:
        station.said.add(one)


def sent(station: QueueState) -> list[list[tuple[str, str, bytes]]]:
    """Call by call: id, kind and text of each note."""
    calls = [command.args for command in station.take_said()]
    return [list(zip(args[::4], args[2::4], args[3::4], strict=True)) for args in calls]  # type: ignore[arg-type]


def line(id: str, text: bytes = b'"x"') -> JobNote:
    return JobNote(id, NOW, "L", text)


def test_what_jobs_say_is_sent_once_in_its_order(station: QueueState) -> None:
    say(station, line("a", b'"1"'), line("b", b'"2"'), line("a", b'"3"'))
    assert sent(station) == [[("a", "L", b'"1"'), ("a", "L", b'"3"'), ("b", "L", b'"2"')]]
    assert sent(station) == []
    assert not station.said.waiting


def test_of_progress_only_the_latest_is_sent(station: QueueState) -> None:
    say(station, *(JobNote("a", NOW, "P", b"[0.%d]" % i) for i in range(5)), line("a"))
    assert sent(station) == [[("a", "L", b'"x"'), ("a", "P", b"[0.4]")]]


def test_of_lines_only_those_that_the_server_would_keep(station: QueueState) -> None:
    say(station, *(line("a", b"%d" % i) for i in range(MAX_LINES + 5)))
    assert [text for _, _, text in sent(station)[0]] == [b"%d" % i for i in range(5, MAX_LINES + 5)]


def test_one_call_adds_to_the_notes_of_a_few_jobs(station: QueueState) -> None:
    say(station, *(line(str(i)) for i in range(2 * MAX_NOTED + 1)))
    assert [len(call) for call in sent(station)] == [MAX_NOTED, MAX_NOTED, 1]


def test_what_is_too_much_for_a_round_trip_goes_with_the_next(station: QueueState) -> None:
    texts = [b"%d" % i + b"x" * (MAX_SAID_BYTES // 4) for i in range(10)]
    say(station, *(line(str(i), text) for i, text in enumerate(texts)))
    found: list[bytes] = []
    trips = 0
    while station.said.waiting:
        found += [text for call in sent(station) for _, _, text in call]
        trips += 1
    assert found == texts
    assert trips == 3


def test_the_first_to_say_something_since_the_last_trip_is_to_tell_the_loop(
    station: QueueState,
) -> None:
    assert [station.said.add(line("a")) for _ in range(3)] == [True, False, False]
    station.take_said()
    assert not station.said.waiting
    assert station.said.add(line("a"))


def test_a_flood_of_one_job_drops_no_line_of_another(station: QueueState) -> None:
    say(station, line("quiet"), *(line("loud", b"%d" % i) for i in range(10_000)), line("quiet"))
    kept = [id for call in sent(station) for id, _, _ in call]
    assert kept.count("quiet") == 2
    assert kept.count("loud") == MAX_LINES


# -- what is logged of an outage


def test_a_new_reason_is_logged_at_once_and_an_old_one_seldom(station: QueueState) -> None:
    logged = [station.failed(reason) for reason in ["refused", "refused", "loading", "refused"]]
    assert logged == [True, False, True, False]


def test_a_reason_is_logged_again_while_an_outage_lasts(station: QueueState) -> None:
    logged = [station.failed("refused") for _ in range(91)]
    assert [at for at, is_logged in enumerate(logged) if is_logged] == [0, 30, 60, 90]


def test_a_number_does_not_make_a_reason_new(station: QueueState) -> None:
    assert station.failed("MOVED 3999 10.0.0.1")
    assert not station.failed("MOVED 4000 10.0.0.1")


def test_the_next_outage_is_logged_from_its_start(station: QueueState) -> None:
    station.failed("refused")
    station.succeeded()
    assert station.failures == 0
    assert station.failed("refused")
