"""How commands are run, driven by hand: what is sent, what is waited for, what comes of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from redis import exceptions as lib

from bide.client.execute import (
    RETRY_FOR,
    ClientState,
    DeadlineExceeded,
    NoScript,
    Send,
    Sleep,
    Steps,
    ToNode,
    check_retry_for,
    execute,
)
from bide.errors import (
    AccessDenied,
    ServerFull,
    ServerRefused,
    ServerUnavailable,
    UsageError,
)
from bide.protocol.commands import Command
from bide.protocol.commands import jobs as job_commands
from bide.protocol.keys import keys_of
from bide.protocol.scripts import SERVER_CLOCK, TEST_CLOCK, load

WHERE = "redis://host:6379/0"
GONE = lib.ConnectionError("Connection closed by server.")
NO_SCRIPT = lib.NoScriptError("No matching script. Please use EVAL.")
KEYS = keys_of("mail")


def command(name: str = "pause", result: Any = "done") -> Command[Any]:
    """A command of a script without arguments, whatever the reply."""
    made: dict[str, Command[Any]] = {
        "pause": job_commands.pause(KEYS),
        "resume": job_commands.resume(KEYS),
        "counts": job_commands.counts(KEYS),
    }
    return made[name]._replace(parse=lambda reply: (result, reply))


def talk(
    *commands: Command[Any],
    retry_for: float = 10.0,
    reached: bool = True,
    clock: str = SERVER_CLOCK,
) -> Steps:
    return execute(commands, ClientState(WHERE, clock, retry_for, reached))


def answer(steps: Steps, *outcomes: Any) -> Any:
    """Answer each Send in turn, and wait whenever asked to; the results, or the next Send."""
    step = next(steps)
    try:
        for outcome in outcomes:
            while isinstance(step, Sleep):
                step = next(steps)
            step = steps.send(outcome)
        while isinstance(step, Sleep):
            step = next(steps)
    except StopIteration as end:
        return end.value
    return step


def insist(steps: Steps, reply: Callable[[Send], Any], clock: list[float]) -> None:
    """Answer alike until it gives up, while as much time passes as it waits."""
    step = next(steps)
    for _ in range(1000):
        if isinstance(step, Sleep):
            clock.append(clock[-1] + step.seconds)
            step = next(steps)
        else:
            step = steps.send(reply(step))


def scripts(step: Any) -> list[str]:
    """The scripts that a Send calls, by name."""
    assert isinstance(step, Send)
    shas = {load(name).sha: name for name in ("pause", "resume", "counts")}
    return [shas[call[1]] for call in step.calls]


@pytest.fixture
def time_passes(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The clock by which retry_for is measured; what is put into it is the time."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[-1])
    return now


# -- what is sent


def test_all_commands_go_in_one_round_trip_by_their_sha() -> None:
    step = next(talk(command("pause"), command("counts")))
    assert isinstance(step, Send)
    pause, counts = step.calls
    keys = KEYS.of(load("pause").keys)
    assert pause == ("EVALSHA", load("pause").sha, len(keys), *keys)
    assert counts[:3] == ("EVALSHA", load("counts").sha, len(KEYS.of(load("counts").keys)))


def test_the_clock_decides_which_script_is_meant() -> None:
    step = next(talk(command("counts"), clock=TEST_CLOCK))
    assert isinstance(step, Send)
    assert step.calls[0][1] == load("counts", TEST_CLOCK).sha != load("counts").sha


def test_replies_are_read_by_their_commands_in_order() -> None:
    steps = talk(command(result="first"), command(result="second"))
    assert answer(steps, [[b"a"], [b"b"]]) == [("first", [b"a"]), ("second", [b"b"])]


def test_what_a_reply_has_left_is_asked_for_at_once_and_alone() -> None:
    """As often as there is some left; what was read already is in the result."""

    def counting(before: int) -> Command[Any]:
        return command("counts")._replace(
            parse=lambda reply: before + reply[1],
            followup=lambda reply: counting(before + reply[1]) if reply[0] == b"more" else None,
        )

    steps = talk(command("pause", 7), counting(0))
    next(steps)
    step = steps.send([[b"ok"], [b"more", 1]])
    assert scripts(step) == ["counts"]
    assert scripts(steps.send([[b"more", 2]])) == ["counts"]
    with pytest.raises(StopIteration) as end:
        steps.send([[b"ok", 4]])
    assert end.value.value == [(7, [b"ok"]), 7]


def test_what_is_left_goes_along_with_what_met_trouble() -> None:
    left = command("resume", "both")
    steps = talk(command("counts")._replace(followup=lambda reply: left), command("pause", "late"))
    next(steps)
    step = steps.send([[b"more"], lib.TryAgainError("Multiple keys request")])
    assert isinstance(step, Sleep)
    assert scripts(next(steps)) == ["resume", "pause"]
    with pytest.raises(StopIteration) as end:
        steps.send([[b"a"], [b"b"]])
    assert end.value.value == [("both", [b"a"]), ("late", [b"b"])]


# -- scripts that are not there


def test_a_missing_script_is_loaded_and_the_call_repeated_at_once() -> None:
    steps = talk(command())
    step = next(steps)
    step = steps.send([NO_SCRIPT])
    assert step == Send([("SCRIPT", "LOAD", load("pause").text)], [ToNode("")])
    step = steps.send([load("pause").sha.encode()])
    assert scripts(step) == ["pause"]
    with pytest.raises(StopIteration) as end:
        steps.send([[b"ok"]])
    assert end.value.value == [("done", [b"ok"])]


def test_each_missing_script_is_loaded_once_and_only_its_calls_are_repeated() -> None:
    steps = talk(command("pause"), command("counts"), command("pause"), command("resume"))
    next(steps)
    step = steps.send([NO_SCRIPT, [b"ok"], NO_SCRIPT, NO_SCRIPT])
    assert isinstance(step, Send)
    assert {call[2] for call in step.calls} == {load("pause").text, load("resume").text}
    assert len(step.calls) == 2
    step = steps.send([b"sha", b"sha"])
    assert scripts(step) == ["pause", "pause", "resume"]


def test_a_server_that_forgets_what_it_is_given_is_not_asked_for_ever(
    time_passes: list[float],
) -> None:
    def forget(step: Send) -> Any:
        return [b"sha"] if step.calls[0][0] == "SCRIPT" else [NO_SCRIPT]

    with pytest.raises(ServerUnavailable, match="does not keep loaded scripts"):
        insist(talk(command(), retry_for=10), forget, time_passes)
    assert len(time_passes) > 5


@pytest.mark.parametrize(
    ("script", "says"),
    [("counts", "start a worker of this release"), ("pause", "`bide acl .*operator")],
)
def test_a_user_who_may_not_load_scripts_is_told_so(script: str, says: str) -> None:
    """A viewer's come with a worker; others need another role."""
    steps = talk(command(script))
    refused = "this user has no permissions to run the 'script|load' command"
    with pytest.raises(AccessDenied, match=says):
        answer(steps, [NO_SCRIPT], [lib.NoPermissionError(refused)])


def test_a_connection_that_breaks_while_loading_is_tried_again() -> None:
    steps = talk(command())
    step = answer(steps, [NO_SCRIPT], GONE)
    assert scripts(step) == ["pause"]


def test_a_script_is_loaded_on_the_node_that_lacks_it() -> None:
    steps = talk(command("pause"), command("pause"), command("counts"))
    first = next(steps)
    assert isinstance(first, Send)
    assert first.routes == ["bide:{mail}"] * 3
    step = steps.send([NoScript("no", "a"), NoScript("no", "b"), [b"ok"]])
    assert isinstance(step, Send)
    assert set(step.routes) == {ToNode("a"), ToNode("b")}
    assert scripts(steps.send([b"sha", b"sha"])) == ["pause", "pause"]


# -- what passes by itself


@pytest.mark.parametrize(
    "error",
    [
        GONE,
        lib.TimeoutError("Timeout reading from socket"),
        ConnectionResetError("reset"),
        OSError("no route"),
        lib.BusyLoadingError("LOADING Redis is loading the dataset in memory"),
    ],
)
def test_a_broken_round_trip_is_repeated_as_it_was(error: Exception) -> None:
    """Every command carries what makes its repeat harmless."""
    steps = talk(command("pause"), command("counts"))
    first = next(steps)
    pause = steps.send(error)
    assert isinstance(pause, Sleep)
    again = next(steps)
    assert isinstance(again, Send)
    assert again._replace(until=None) == first


@pytest.mark.parametrize(
    "error",
    [
        lib.ReadOnlyError("You can't write against a read only replica."),
        lib.TryAgainError("Multiple keys request during rehashing of slot"),
        lib.ClusterDownError("The cluster is down"),
        lib.ResponseError("LOADING Redis is loading the dataset in memory"),
        lib.ResponseError("MASTERDOWN Link with MASTER is down"),
        lib.ResponseError("BUSY Redis is busy running a script."),
    ],
)
def test_only_the_commands_that_met_trouble_are_repeated(error: Exception) -> None:
    steps = talk(command("pause", 1), command("counts", 2), command("resume", 3))
    next(steps)
    step = steps.send([[b"a"], error, [b"c"]])
    assert isinstance(step, Sleep)
    assert scripts(next(steps)) == ["counts"]
    with pytest.raises(StopIteration) as end:
        steps.send([[b"b"]])
    assert end.value.value == [(1, [b"a"]), (2, [b"b"]), (3, [b"c"])]


def test_pauses_grow_and_are_bounded_and_jittered(time_passes: list[float]) -> None:
    steps = talk(command(), retry_for=60)
    step = next(steps)
    pauses = []
    for _ in range(12):
        step = steps.send(GONE)
        assert isinstance(step, Sleep)
        pauses.append(step.seconds)
        step = next(steps)
    ceilings = [min(0.02 * 2**i, 1.0) for i in range(12)]
    assert all(c / 2 <= p <= c for p, c in zip(pauses, ceilings, strict=True))
    assert pauses != ceilings


def test_patience_ends(time_passes: list[float]) -> None:
    with pytest.raises(ServerUnavailable, match=r"redis://host:6379/0 \(Connection closed by"):
        insist(talk(command(), retry_for=10), lambda step: GONE, time_passes)
    assert 8 < time_passes[-1] <= 10


def test_a_repeat_is_not_to_be_sent_after_the_patience(time_passes: list[float]) -> None:
    """Where to, is asked in between, and may take long."""
    time_passes.append(7.0)
    steps = talk(command("pause"), command("counts"), retry_for=10)
    first = next(steps)
    assert isinstance(first, Send)
    assert first.until is None, "it was never sent, so that no harm is done by sending it late"
    steps.send([NO_SCRIPT, [b"ok"]])
    once = steps.send([b"sha"])
    assert isinstance(once, Send)
    assert once.until is None, "what met no script has done nothing"
    steps.send(GONE)
    again = next(steps)
    assert isinstance(again, Send)
    assert again.until == 17.0


@pytest.mark.parametrize(("args", "until"), [(("job",), 10.0), (("next",), None)])
def test_what_is_asked_in_another_way_gets_no_new_patience_if_it_may_have_been_done(
    time_passes: list[float], args: Any, until: float | None
) -> None:
    """What is new is another thing."""
    other = command("resume")._replace(args=args)
    steps = talk(command()._replace(args=("job",), followup=lambda reply: other), retry_for=10)
    next(steps)
    steps.send(GONE)
    assert isinstance(next(steps), Send)
    time_passes.append(8.0)
    step = steps.send([[b"another way"]])
    assert isinstance(step, Send)
    assert step.until == until


def test_of_one_that_was_not_sent_what_came_before_is_told(time_passes: list[float]) -> None:
    def late(step: Send) -> Any:
        if step.until is None:
            return GONE
        time_passes.append(20.0)
        return DeadlineExceeded()

    with pytest.raises(ServerUnavailable, match="Connection closed by server"):
        insist(talk(command(), retry_for=10), late, time_passes)


def test_what_is_not_worth_a_repeat_causes_none() -> None:
    best_effort = command("counts", "best effort")._replace(best_effort=True)
    done, left = answer(talk(command("pause", "worth it"), best_effort), [[b"ok"], GONE])
    assert done == ("worth it", [b"ok"])
    assert isinstance(left, ServerUnavailable)


def test_but_goes_along_with_one() -> None:
    best_effort = command("counts", "best effort")._replace(best_effort=True)
    steps = talk(command("pause", "worth it"), best_effort)
    assert scripts(answer(steps, GONE)) == ["pause", "counts"]


def test_nor_is_a_script_that_it_lacks_too_much(time_passes: list[float]) -> None:
    best_effort = command("counts", "best effort")._replace(best_effort=True)
    steps = talk(command("pause"), best_effort)
    assert scripts(answer(steps, [[b"ok"], NO_SCRIPT], [b"sha"])) == ["counts"]


def test_without_patience_the_first_trouble_is_the_last() -> None:
    steps = talk(command(), retry_for=0)
    next(steps)
    with pytest.raises(ServerUnavailable):
        steps.send(GONE)


def test_a_server_that_was_never_reached_is_an_error_at_once() -> None:
    steps = talk(command(), reached=False)
    next(steps)
    with pytest.raises(ServerUnavailable, match=r"start it, or give its address .*\$BIDE_URL"):
        steps.send(lib.ConnectionError("Error 111 connecting to host:6379. Connection refused."))


def test_one_that_has_answered_meanwhile_was_reached() -> None:
    steps = talk(command("pause"), command("counts"), reached=False)
    next(steps)
    step = steps.send([lib.ReadOnlyError("You can't write"), [b"ok"]])
    assert isinstance(step, Sleep)
    next(steps)
    assert isinstance(steps.send(GONE), Sleep)


# -- what does not pass


def test_an_error_takes_the_place_of_its_result_and_of_no_other() -> None:
    full = lib.OutOfMemoryError("command not allowed when used memory > 'maxmemory'.")
    failed, passed = answer(talk(command(), command()), [full, [b"ok"]])
    assert type(failed) is ServerFull
    assert "raise maxmemory" in str(failed)
    assert passed == ("done", [b"ok"])


def test_a_reply_that_cannot_be_read_is_an_error_in_its_place() -> None:
    """Another program, or another version, wrote what the script found."""

    def choke(reply: Any) -> Any:
        raise ValueError("what is this?")

    failed, passed = answer(talk(command()._replace(parse=choke), command()), [[b"x"], [b"ok"]])
    assert type(failed) is ServerRefused
    assert "what is this?" in str(failed)
    assert passed == ("done", [b"ok"])


@pytest.mark.parametrize("retry_for", [-1, 10.1, 1e9, float("nan"), float("inf")])
def test_patience_is_no_longer_than_retention_spares_what_a_repeat_must_find(
    retry_for: float,
) -> None:
    with pytest.raises(UsageError, match="retry_for must be from 0 to 10 seconds"):
        check_retry_for(retry_for)
    assert check_retry_for(RETRY_FOR) == RETRY_FOR


@pytest.mark.parametrize(
    "error",
    [
        lib.AuthenticationError("invalid username-password pair or user is disabled."),
        lib.AuthorizationError("not authorized"),
    ],
)
def test_wrong_credentials_are_not_tried_again(error: Exception) -> None:
    steps = talk(command())
    next(steps)
    with pytest.raises(
        AccessDenied, match=r"redis://host:6379/0 refuses access .*user, the password"
    ):
        steps.send(error)


def test_what_one_node_did_not_answer_leaves_the_others_results(time_passes: list[float]) -> None:
    steps = talk(command(result="a"), command(result="b"), retry_for=0)
    first, second = answer(steps, [[b"x"], GONE])
    assert first == ("a", [b"x"])
    assert isinstance(second, ServerUnavailable)
