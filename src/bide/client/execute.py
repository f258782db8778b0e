"""Runs commands with retries, without I/O: a generator that yields what to send and when to wait.

`bide.client.blocking` and `bide.client.aio` do the I/O for what it yields, so both behave alike:

    Send(calls, routes, until)  send each call to the node of its route, but not after `until`;
                                answer with the list of replies, in which an error reply is an
                                exception, or with the exception because of which nothing was sent
    Sleep(seconds)              wait

`bide.client.topology` resolves routes; with one server, all lead there.

If a command asks for a durability, a call that waits for it follows in the same round trip
(`bide.model.options`).

After a broken round trip it is unknown whether the calls took effect. Every command is idempotent:
a job's id, a claim's number or a token makes its retry harmless. So it is sent again unchanged,
with jittered pauses that grow, until `retry_for` seconds have passed. Finding the right node may
take long, too. So a call that may have taken effect is never sent after that time. A client that
has never reached its server does not retry: a wrong URL is an error at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import Any, Final, NamedTuple

import hiredis
from redis import exceptions as lib

from bide.client.errors import is_transient, map_error, unavailable
from bide.client.url import hide_password, resolve_url
from bide.errors import (
    BideError,
    DurabilityUnavailable,
    ServerRefused,
    UsageError,
)
from bide.model import options
from bide.model.durations import JITTER
from bide.model.options import Kinds
from bide.protocol.commands import Command
from bide.protocol.scripts import load

Call = tuple[Any, ...]
Answer = list[Any] | Exception
"""Replies, in which an error reply is an exception; or the error that broke the round trip."""


class ToNode(NamedTuple):
    """The route to a node that has answered before."""

    node: str
    """Its URL; empty if there is only one server."""


class AfterCalls(NamedTuple):
    """The route of the call before it: right behind that call, also if it is redirected."""

    counts: tuple[int, ...]
    """Positions of the calls whose writes it must count. It counts the writes of its connection.
    If such a call went over another connection, the topology has that call repeated."""


Route = str | ToNode | AfterCalls
"""A key, for the node that has it; or a node; or behind other calls."""


class NoScript(lib.NoScriptError):
    """A node does not know a script."""

    def __init__(self, text: str, node: str) -> None:
        super().__init__(text)
        self.node = node


def pack(calls: Sequence[Call]) -> bytes:
    """Encode calls as bytes.

    Integers are converted to text here. hiredis (3.5) would call Python for that, and a signal
    handler may run in that call. If the handler raises, as at Ctrl-C, hiredis continues without
    a value, and the process crashes.
    """
    packed = []
    for call in calls:
        words = tuple([str(word) if type(word) is int else word for word in call])
        packed.append(hiredis.pack_command(words))  # type: ignore[arg-type]
    return b"".join(packed)


class DeadlineExceeded(lib.TimeoutError):
    """A retry was not sent, because its deadline had passed."""


def is_late(until: float | None) -> bool:
    """Whether a deadline (`time.monotonic()`) has passed; None never passes."""
    return until is not None and time.monotonic() > until


RETRY_FOR: Final = 10.0
"""Maximum seconds of retries. Retention keeps all jobs that finished in the last 15 s, so a retry
always finds the record of the original call."""


def check_retry_for(retry_for: float) -> float:
    """Return `retry_for` if it is from 0 to 10 s.

    A later retry might find its job finished and removed, and add it again.
    """
    is_number = isinstance(retry_for, int | float) and not isinstance(retry_for, bool)
    if not is_number or not 0 <= retry_for <= RETRY_FOR:
        raise UsageError(f"retry_for must be from 0 to {RETRY_FOR:g} seconds, not {retry_for!r}.")
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
    """The deadline (`time.monotonic()`); a later request is answered with `DeadlineExceeded`."""


class Encoded(list[Command[Any]]):
    """Commands whose calls were encoded before it was time to send them."""

    def __init__(self, commands: Iterable[Command[Any]], encoded: bytes | None) -> None:
        super().__init__(commands)
        self.encoded: Final = encoded


class Sleep(NamedTuple):
    """Wait."""

    seconds: float


class ClientState(NamedTuple):
    """The facts about a client that `execute` needs."""

    where: str
    """The server's URL, without its password."""
    clock: str
    """The clock that the scripts are built for."""
    retry_for: float
    """Seconds."""
    reached: bool
    """Whether this client has had an answer from its server before."""


class ClientCore:
    """The common part of both clients: their settings, and whether the server answers."""

    def __init__(self, url: str | None, retry_for: float, reply_timeout: float, clock: str) -> None:
        """Set up; nothing is sent before the first command.

        Args:
            url: the server, in a form of `bide.client.url`. Without it, bide takes `$BIDE_URL`,
                then the local default.
            retry_for: seconds for which a broken round trip is retried, 0 to 10.
            reply_timeout: seconds to wait for one reply.
            clock: the clock that the scripts are built for (tests have one that can be moved).
        """
        self.url = resolve_url(url)
        self.where = hide_password(self.url)
        self.answers = True
        """Whether the last round trip succeeded, if there was one."""
        self._clock = clock
        self._state = ClientState(self.where, clock, check_retry_for(retry_for), reached=False)
        self._reply_timeout = reply_timeout


def first_error(results: list[Any]) -> list[Any]:
    """Return results, or raise the first error among them."""
    for result in results:
        if isinstance(result, BideError):
            raise result
    return results


_confirm_of: Final[Callable[[Command[Any]], Kinds]] = attrgetter("confirm")

Steps = Generator[Send | Sleep, Any, list[Any]]


def execute(commands: Sequence[Command[Any]], state: ClientState) -> Steps:
    """Run commands; returns their results, with a `BideError` in place of each that failed.

    Raises `ServerUnavailable` if the server did not answer within `retry_for` seconds, and
    `AccessDenied` if it does not let this client in.
    """
    commands = [*commands]
    results: list[Any] = [None] * len(commands)
    pending = list(range(len(commands)))
    reached = state.reached
    started = time.monotonic()
    pause = _FIRST_PAUSE
    loaded_scripts: set[tuple[str, ToNode]] = set()
    """The scripts that were loaded, and the nodes."""
    problem: Exception = _NOTHING_SENT
    in_doubt: set[int] = set()
    while True:
        sent = commands if len(pending) == len(commands) else [commands[i] for i in pending]
        asked = any(map(_confirm_of, sent))
        kinds = options.kinds_of(chain.from_iterable(map(_confirm_of, sent))) if asked else ()
        until = None if in_doubt.isdisjoint(pending) else started + state.retry_for
        outcome = yield _send(sent, kinds, state.clock, until)
        again: list[int] = []
        onward: list[int] = []
        if isinstance(outcome, Exception):
            if not isinstance(outcome, DeadlineExceeded):  # otherwise an earlier error is why
                problem = outcome
            if not is_transient(problem):
                raise map_error(problem, state.where)
            if not reached:
                raise unavailable(problem, state.where)
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
                        problem = problem if isinstance(reply, DeadlineExceeded) else reply
                        again.append(i)
                        in_doubt.add(i)
                    else:
                        results[i] = map_error(reply, state.where, commands[i], state.clock)
                elif short is not None and commands[i].confirm and is_transient(short):
                    problem = short
                    again.append(i)
                    in_doubt.add(i)
                else:
                    results[i] = _parse(commands[i], reply, state.where, i in in_doubt)
                    if isinstance(results[i], Command):
                        if (
                            results[i].args != commands[i].args
                        ):  # otherwise it is the same call in another form
                            in_doubt.discard(i)
                        commands[i] = results[i]
                        onward.append(i)
                    elif isinstance(results[i], DurabilityUnavailable) and i in in_doubt:
                        results[i] = options.doubtful(results[i])
                    elif (
                        short is not None
                        and commands[i].confirm
                        and not isinstance(results[i], BideError)
                    ):
                        results[i] = options.unconfirmed(short)
            if missing:
                scripts = {(commands[i].script, node) for i, node in missing.items()}
                loads = [("SCRIPT", "LOAD", load(s, state.clock).text) for s, _ in scripts]
                loaded = yield Send(loads, [node for _, node in scripts])
                refusal = _refusal(loaded)
                if refusal is not None and not is_transient(refusal):
                    lacking = commands[next(iter(missing))]
                    raise map_error(refusal, state.where, lacking, state.clock)
                again += missing
                if refusal is None and not scripts <= loaded_scripts:
                    loaded_scripts |= scripts
                    pending = sorted([*again, *onward])
                    continue
                problem = refusal or lib.NoScriptError("it does not keep loaded scripts")
        if not (again or onward):
            return results
        pending = sorted([*again, *onward])
        if not again:
            # Only followups are left: no error. The retry time starts again, except for calls that
            # may have taken effect before.
            if in_doubt.isdisjoint(pending):
                started, pause = time.monotonic(), _FIRST_PAUSE
            continue
        is_over = time.monotonic() - started + pause > state.retry_for
        if is_over or all(commands[i].best_effort for i in pending):
            gone = unavailable(problem, state.where)
            if len(pending) == len(commands):
                raise gone
            for i in pending:  # the nodes of the other commands have answered
                results[i] = gone
            return results
        yield Sleep(pause * JITTER.uniform(0.5, 1.0))
        pause = min(pause * 2, _LONGEST_PAUSE)


def reading(stream: str, after: str, seconds: float) -> Call:
    """Return the call that reads a stream after an id, and blocks if there is nothing new."""
    block_ms = max(1, round(seconds * 1000))  # 0 would block without limit
    return ("XREAD", "COUNT", MOST_READ, "BLOCK", block_ms, "STREAMS", stream, after)


def read_entries(replies: list[Any] | Exception, where: str) -> Entries | None:
    """Return the entries of such a call; None if it has to be sent again a little later."""
    reply = replies if isinstance(replies, Exception) else replies[0]
    if isinstance(reply, Exception):
        if is_transient(reply):
            return None
        raise map_error(reply, where)
    return [
        (id.decode(), b"".join(fields[1:2])) for _, found in reply or () for id, fields in found
    ]


def _parse(command: Command[Any], reply: Any, where: str, doubtful: bool) -> Any:
    """Return the result, its followup command, or an error for a reply that cannot be read."""
    try:
        if doubtful and command.repeated:
            reply = command.repeated(reply)
        return (command.followup and command.followup(reply)) or command.parse(reply)
    except BideError as error:  # a refusal by the script itself
        return error
    except Exception as error:
        return ServerRefused(
            f"The server at {where} holds data that this version of bide cannot read "
            f"({command.script}: {error!r}); upgrade, or delete what another program wrote."
        )


def calls_of(commands: Sequence[Command[Any]], clock: str) -> list[Call]:
    """Return the calls of the scripts of commands."""
    return [
        ("EVALSHA", load(each.script, clock).sha, len(each.keys), *each.keys, *each.args)
        for each in commands
    ]


def _send(commands: Sequence[Command[Any]], kinds: Kinds, clock: str, until: float | None) -> Send:
    """Build the calls of commands; one wait follows the last command that asks for a durability.

    With one wait for each command, every call would wait for another write to disk.
    """
    calls = calls_of(commands, clock)
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
    at = _waits_at(commands)
    end = at + len(kinds)
    return outcome[:at] + outcome[end:], outcome[at:end]


def _waits_at(commands: Sequence[Command[Any]]) -> int:
    return max((i for i, command in enumerate(commands, 1) if command.confirm), default=0)


def _refusal(loaded: Any) -> Exception | None:
    if isinstance(loaded, Exception):
        return loaded
    return next((reply for reply in loaded if isinstance(reply, Exception)), None)
