"""Changing jobs that no worker holds, and queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from bide.command import Command, command
from bide.errors import UsageError
from bide.ids import new_id
from bide.keys import SCHEMA, Keys
from bide.ops.reply import pieces, raw, words
from bide.retention import Retention

CHUNK: Final = 100
"""Jobs cancelled or deleted per call at most: bounds the time one call may take on the server."""

DATA: Final = "data"
"""The `kind` of a delay queue, in the settings."""

SWEEP: Final = 500
"""Jobs deleted per call while a queue is emptied."""


class Moved(NamedTuple):
    """What became of a job that was to be rescheduled, promoted or retried."""

    word: str
    """`ok`, or the state that the job is in instead (`gone` if there is none)."""
    due_us: int


class Emptied(NamedTuple):
    """One step of emptying."""

    aside: int
    """How many jobs this emptying has set aside."""
    more: bool
    """Some are not deleted yet."""
    busy: bool = False
    """An earlier trash was left, and is being swept first: begin again."""


def cancel(keys: Keys, ids: Sequence[str], running: bool = True) -> Command[list[str]]:
    """Take up to `CHUNK` jobs back.

    For each `ok`, `asked` (it runs, and was asked to end), or the state that it is in instead.
    """
    _check_few(ids)
    return command("cancel", keys, (int(running), *map(raw, ids)), lambda reply: words(reply, 2))


def reschedule(keys: Keys, ids: Sequence[str], when: str) -> Command[list[Moved]]:
    """Give up to `CHUNK` jobs another due time, `when` as `ops.produce.when` writes it."""
    _check_few(ids)
    return command("reschedule", keys, (when, *map(raw, ids)), _read_moved)


def promote(keys: Keys, ids: Sequence[str]) -> Command[list[Moved]]:
    """Make up to `CHUNK` jobs due now."""
    _check_few(ids)
    return command("promote", keys, [*map(raw, ids)], _read_moved)


def retry(keys: Keys, ids: Sequence[str], when: str) -> Command[list[Moved]]:
    """Run up to `CHUNK` jobs that have ended once more.

    The command has a name, which the jobs remember: a repeat after a lost reply runs none of them
    again, though they may have ended meanwhile.
    """
    _check_few(ids)
    return command("retry", keys, (new_id(), when, *map(raw, ids)), _read_moved)


def delete(keys: Keys, ids: Sequence[str], unbegun: bool = True) -> Command[list[str]]:
    """Remove up to `CHUNK` jobs.

    For each `ok`, `active` or (if none may go that has not begun) `unended`: nothing was removed;
    or `gone`.
    """
    _check_few(ids)
    args = (int(unbegun), *map(raw, ids))
    return command("delete", keys, args, lambda reply: words(reply, 1))


def pause(keys: Keys) -> Command[None]:
    """Let nothing be claimed."""
    return command("pause", keys, (), lambda reply: None)


def resume(keys: Keys) -> Command[None]:
    """Let jobs be claimed again."""
    return command("resume", keys, (), lambda reply: None)


def configure(keys: Keys, retention: Retention) -> Command[None]:
    """Set what the queue keeps of finished jobs.

    Raises:
        UsageError: it is no `Retention`, or an age or the count cannot be meant.
    """
    if not isinstance(retention, Retention):
        raise UsageError(f"retention must be a bide.Retention, not {retention!r}.")
    return command(
        "configure", keys, (retention.stored(), "-", retention.result_bytes()), lambda reply: None
    )


def limit(keys: Keys, rate: str, max_active: str) -> Command[None]:
    """Set how many jobs may begin in a time, and run at once; both as `bide.limits` writes them."""
    return command("limit", keys, (rate, max_active), lambda reply: None)


def mark_data(keys: Keys, retention: Retention, pushes: bool) -> Command[bool]:
    """Mark a queue as one of data, with its retention; whether it is one.

    It is by its first push, or if it has items already; a queue with jobs of a worker's stays as
    it is.
    """
    args = (retention.stored(), DATA if pushes else "maybe", retention.result_bytes())
    return command("configure", keys, args, lambda reply: reply[1] == DATA.encode())


def empty(keys: Keys, begin: str | None) -> Command[Emptied]:
    """One bounded step of removing all delayed and waiting jobs.

    Args:
        keys: of the queue.
        begin: a new id, to set the jobs aside (its repeat sets nothing more aside); None to go on
            deleting them.
    """
    return command("empty", keys, (begin or "-", SWEEP), _read_emptied)


def forget(keys: Keys) -> Command[dict[str, int]]:
    """Remove what is left of a queue that holds nothing and that nobody serves.

    Returns:
        Nothing, if it was removed; else how many it holds of what (see `forget.lua`), and nothing
        was removed.
    """
    return command(
        "forget", keys, (), lambda reply: {what.decode(): n for what, n in pieces(reply, 1, 2)}
    )


class Upgraded(NamedTuple):
    """One step of bringing a queue to another schema."""

    cursor: str
    """With which the next step goes on; `0` at the end."""
    changed: int
    """How much this step has converted."""
    found: int
    """0; or the schema of the queue, from which this target cannot be reached in one step."""


def upgrade(keys: Keys, target: int, cursor: str) -> Command[Upgraded]:
    """One bounded step of bringing a queue to the next schema, or back by one.

    A step that is repeated changes nothing, and all of it may be begun again at any time.

    Args:
        keys: of the queue.
        target: the schema.
        cursor: what the last step has returned; `0` to begin.

    Raises:
        UsageError: this bide does not know that schema.
    """
    return command("upgrade", keys, (check_schema(target), cursor), _read_upgraded)


def check_schema(schema: int) -> int:
    """A schema that this bide knows.

    Raises:
        UsageError: it does not.
    """
    if not 1 <= schema <= SCHEMA:
        raise UsageError(f"bide knows the schemas 1 to {SCHEMA} here; {schema} is none of them.")
    return schema


def _read_upgraded(reply: list[Any]) -> Upgraded:
    if reply[0] == b"cannot":
        return Upgraded("0", 0, reply[1])
    return Upgraded(reply[1].decode(), reply[2], 0)


def _check_few(ids: Sequence[str]) -> None:
    if len(ids) > CHUNK:
        raise UsageError(f"{len(ids)} jobs are too many for one call; give {CHUNK} at a time.")


def _read_moved(reply: list[Any]) -> list[Moved]:
    return [Moved(word.decode(), due_us) for word, due_us in pieces(reply, 2, 2)]


def _read_emptied(reply: list[Any]) -> Emptied:
    if reply[0] == b"busy":
        return Emptied(0, True, busy=True)
    return Emptied(reply[1], bool(reply[2]))
