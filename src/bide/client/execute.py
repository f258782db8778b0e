"""How commands are run, without the I/O: a generator that says what to send and when to wait.

`bide.client.blocking` and `bide.client.aio` drive it and do nothing but what it yields, so that
both behave alike:

    Send(calls, routes, until)  send these calls, each to where its route leads, but none of them
                                after `until`; answer with the list of replies, in which an error
                                reply is an exception, or with the exception for which nothing
                                could be sent
    Sleep(seconds)              wait

Routes are `bide.client.topology`' to follow: with one server, all lead there.

Behind commands that ask for a durability, what waits for it is sent along (`bide.model.options`).

A broken round trip leaves open whether the calls took effect. Every command carries what makes its
repeat harmless (a job's id, a claim's number, a token), so it is sent again as it was, with
growing, jittered pauses, until `patience` seconds have passed. To find out where to send it may
take long, too: so what may have taken effect is not sent after that time, however it was spent. A
client that has never reached its server does not wait: a wrong URL is an error at once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Generator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

import hiredis
from redis import exceptions as lib

from bide.client.errors import is_transient, map_error, unavailable
from bide.errors import (
    BideError,
    DurabilityTimeout,
    DurabilityUnavailable,
    ServerRefused,
    UsageError,
)
from bide.model import options
from bide.model.options import Kinds
from bide.protocol.command import Command
from bide.protocol.scripts import load

Call = tuple[Any, ...]
Answer = list[Any] | Exception
"""Replies, in which an error reply is an exception; or what broke the round trip."""


class ToNode(NamedTuple):
    """To a node that has answered before."""

    node: str
    """Its URL; empty for the one server there is."""


class AfterCalls(NamedTuple):
    """Right behind the call before it, and again with that if it has to be sent elsewhere."""

    counts: tuple[int, ...]
    """Places of calls whose writes it is to count. It counts those of its own connection: where one
    of these went over another, routes have that call repeated."""


Route = str | ToNode | AfterCalls
"""The key whose node a call is for; or that node; or behind another."""


class NoScript(lib.NoScriptError):
    """A node does not know a script."""

    def __init__(self, text: str, node: str) -> None:
        super().__init__(text)
        self.node = node


def pack(calls: Sequence[Call]) -> bytes:
    """The bytes of calls.

    Numbers go as text: hiredis (3.5) asks them for theirs, at which a signal's handler may run, and
    where that raises, as at Ctrl-C, it goes on with nothing, and the process dies.
    """
    return b"".join(
        [
            hiredis.pack_command(tuple([str(w) if type(w) is int else w for w in call]))  # type: ignore[arg-type]
            for call in calls
        ]
    )


class DeadlineExceeded(lib.TimeoutError):
    """A call was not sent: it repeats another, and was so long under way that it must not."""


def is_late(until: float | None) -> bool:
    """Whether a time (`time.monotonic()`) has passed; None never does."""
    return until is not None and time.monotonic() > until


RETRY_FOR: Final = 10.0
"""Seconds of repeating. Retention spares what finished in the last 15, so a repeat always finds
the record of what it repeats."""


def check_retry_for(retry_for: float) -> float:
    """Return `patience` if it is one that retention allows.

    Raises:
        UsageError: a repeat so late might find its job finished and removed, and add it again.
    """
    if not 0 <= retry_for <= RETRY_FOR:
        raise UsageError(f"patience must be from 0 to {RETRY_FOR:g} seconds, not {retry_for!r}.")
    return retry_for


_NOTHING_SENT: Final = lib.ConnectionError("nothing was sent")
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0

Entries = list[tuple[str, bytes]]
"""Entries of a stream of events: id and line."""

MOST_READ: Final = 200
"""Entries per reply; each has 1 KB at most."""


class Send(NamedTuple):
    """Send these calls, in one round trip to each node that they are for."""

    calls: list[Call]
    routes: list[Route]
    until: float | None = None
    """When it is too late (`time.monotonic()`): a trip that begins then is answered with `Late`."""


class Sleep(NamedTuple):
    """Wait."""

    seconds: float


class ClientState(NamedTuple):
    """What a dialogue needs to know of the client that drives it."""

    where: str
    """The server's URL, fit to be printed."""
    clock: str
    """Which clock the scripts are built for."""
    retry_for: float
    reached: bool
    """Whether this client has had an answer from its server before."""


_confirm_of: Final[Callable[[Command[Any]], Kinds]] = attrgetter("confirm")

Dialogue = Generator[Send | Sleep, Any, list[Any]]


def execute(commands: Sequence[Command[Any]], situation: ClientState) -> Dialogue:
    """Run commands; returns their results, with a `BideError` in place of each that failed.

    Raises:
        ServerUnavailable: no answer within the patience.
        AccessDenied: the server does not let this client in.
    """
    commands = [*commands]
    results: list[Any] = [None] * len(commands)
    pending = list(range(len(commands)))
    reached = situation.reached
    started = time.monotonic()
    pause = _FIRST_PAUSE
    loaded_once = False
    problem: Exception = _NOTHING_SENT
    in_doubt: set[int] = set()
    while True:
        sent = [commands[i] for i in pending]
        kinds = options.kinds_of(chain.from_iterable(map(_confirm_of, sent)))
        until = None if in_doubt.isdisjoint(pending) else started + situation.retry_for
        outcome = yield _send(sent, kinds, situation.clock, until)
        again: list[int] = []
        onward: list[int] = []
        if isinstance(outcome, Exception):
            problem = _why(outcome, problem)
            if not is_transient(problem):
                raise map_error(problem, situation.where)
            if not reached:
                raise unavailable(problem, situation.where)
            again = pending
            in_doubt.update(pending)
        else:
            reached = True
            missing: dict[int, ToNode] = {}
            replies, waited = _parted(outcome, sent, kinds) if kinds else (outcome, ())
            short = options.missing(kinds, waited) if kinds else None
            for i, reply in zip(pending, replies, strict=True):
                if isinstance(reply, lib.NoScriptError):
                    missing[i] = ToNode(getattr(reply, "node", ""))
                elif isinstance(reply, Exception):
                    if is_transient(reply):
                        problem = _why(reply, problem)
                        again.append(i)
                        in_doubt.add(i)
                    else:
                        results[i] = map_error(reply, situation.where, commands[i], situation.clock)
                elif short is not None and commands[i].confirm and is_transient(short):
                    problem = short
                    again.append(i)
                    in_doubt.add(i)
                else:
                    results[i] = _parse(commands[i], reply, situation.where)
                    if isinstance(results[i], Command):
                        if results[i].args != commands[i].args:  # else the same, in another way
                            in_doubt.discard(i)
                        commands[i] = results[i]
                        onward.append(i)
                    elif isinstance(results[i], DurabilityUnavailable) and i in in_doubt:
                        results[i] = options.doubtful(results[i])
                    elif short is not None and commands[i].confirm:
                        results[i] = _unreplicated(results[i], short)
            if missing:
                scripts = {(commands[i].script, node) for i, node in missing.items()}
                loads = [("SCRIPT", "LOAD", load(s, situation.clock).text) for s, _ in scripts]
                loaded = yield Send(loads, [node for _, node in scripts])
                refusal = _refusal(loaded)
                if refusal is not None and not is_transient(refusal):
                    lacking = commands[next(iter(missing))]
                    raise map_error(refusal, situation.where, lacking, situation.clock)
                again += missing
                if refusal is None and not loaded_once:
                    loaded_once = True
                    pending = sorted([*again, *onward])
                    continue
                problem = refusal or lib.NoScriptError("it forgets the scripts it is given")
        if not (again or onward):
            return results
        pending = sorted([*again, *onward])
        if not again:
            # Only the rest of what was read: no trouble. Patience begins anew, but not for what may
            # have taken effect before.
            if in_doubt.isdisjoint(pending):
                started, pause = time.monotonic(), _FIRST_PAUSE
            continue
        is_over = time.monotonic() - started + pause > situation.retry_for
        if is_over or all(commands[i].aside for i in pending):
            gone = unavailable(problem, situation.where)
            if len(pending) == len(commands):
                raise gone
            for i in pending:  # the nodes that the others are for have answered
                results[i] = gone
            return results
        yield Sleep(pause * random.uniform(0.5, 1.0))
        pause = min(pause * 2, _LONGEST_PAUSE)


def reading(stream: str, after: str, seconds: float) -> Call:
    """The call that reads on in a stream behind an id, and waits if there is nothing."""
    block_ms = max(1, round(seconds * 1000))  # 0 would be for ever
    return ("XREAD", "COUNT", MOST_READ, "BLOCK", block_ms, "STREAMS", stream, after)


def read_entries(replies: list[Any] | Exception, where: str) -> Entries | None:
    """What such a call brought; None where it has to be sent again, a little later.

    Raises:
        BideError: the server refused.
    """
    reply = replies if isinstance(replies, Exception) else replies[0]
    if isinstance(reply, Exception):
        if is_transient(reply):
            return None
        raise map_error(reply, where)
    return [
        (id.decode(), b"".join(fields[1:2])) for _, found in reply or () for id, fields in found
    ]


def _parse(command: Command[Any], reply: Any, where: str) -> Any:
    """The result, or what asks for its rest; an error for a reply that another program caused."""
    try:
        return (command.followup and command.followup(reply)) or command.parse(reply)
    except BideError as error:  # a refusal that the script has put into words
        return error
    except Exception as error:
        return ServerRefused(
            f"The server at {where} holds data that this version of bide cannot read "
            f"({command.script}: {error!r}); upgrade, or delete what another program wrote."
        )


def _unreplicated(result: Any, short: Exception) -> Any:
    """What came of a command whose durability was not confirmed."""
    if isinstance(result, BideError):
        return result
    if isinstance(short, DurabilityTimeout):
        return short
    return DurabilityTimeout(f"The job was added, but the server did not confirm it ({short}).")


def _why(error: Exception, before: Exception) -> Exception:
    """What to tell of; what came before it, of a call that was not sent again for lack of time."""
    return before if isinstance(error, DeadlineExceeded) else error


def _send(commands: Sequence[Command[Any]], kinds: Kinds, clock: str, until: float | None) -> Send:
    """The calls of commands; what waits for all of them stands behind the last that asks for it.

    One wait for each of them would have every call wait for the disk's next turn.
    """
    calls = [_evalsha(command, clock) for command in commands]
    routes: list[Route] = [command.keys[0] for command in commands]
    if not kinds:
        return Send(calls, routes, until)
    at = _waits_at(commands)
    calls[at:at] = options.waits(kinds)
    asking = tuple(i for i, command in enumerate(commands) if command.confirm)
    routes[at:at] = [AfterCalls(asking)] * len(kinds)
    return Send(calls, routes, until)


def _parted(
    outcome: list[Any], commands: Sequence[Command[Any]], kinds: Kinds
) -> tuple[list[Any], list[Any]]:
    """The replies of commands, and of what has waited behind them."""
    at = _waits_at(commands)
    end = at + len(kinds)
    return outcome[:at] + outcome[end:], outcome[at:end]


def _waits_at(commands: Sequence[Command[Any]]) -> int:
    return max((i for i, command in enumerate(commands, 1) if command.confirm), default=0)


def _evalsha(command: Command[Any], clock: str) -> Call:
    sha = load(command.script, clock).sha
    return ("EVALSHA", sha, len(command.keys), *command.keys, *command.args)


def _refusal(loaded: Any) -> Exception | None:
    if isinstance(loaded, Exception):
        return loaded
    return next((reply for reply in loaded if isinstance(reply, Exception)), None)
