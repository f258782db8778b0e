"""What the blocking and the awaited delay queue decide alike, decided once, without I/O."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

from bide.clock import Duration, to_us
from bide.command import Command
from bide.delay_queue.items import ItemCore, ItemSeen
from bide.delay_queue.replies import Held, decoded, release, set_aside, settle_all, sorted_out
from bide.delay_queue.seats import Seat, Seats
from bide.delay_queue.steps import Ask, Hear, Hush, Steps, ask, ask_all
from bide.errors import BideError, PayloadError, ServerRefused, UsageError
from bide.ids import check_name, new_id
from bide.job import Claimed
from bide.keys import DEFAULT_PRIORITY, Keys
from bide.ops import consume, inspect, manage, produce
from bide.ops.consume import Claim, Outcome, Popped, Settle
from bide.ops.produce import Prepared
from bide.payload.codec import encode_error
from bide.payload.items import encode_item
from bide.queue.core import checked_ids, chunks
from bide.queue.place import Place
from bide.retention import Retention
from bide.states import State

log = logging.getLogger("bide.delay_queue")

LEASE: Final = 30.0
"""Seconds for which an item is held, unless its consumer says otherwise."""

RETENTION: Final = Retention(completed=0, cancelled=0)
"""What is taken is of no more use; so that a repeated call finds what it did, it stays for 15 s."""


C = TypeVar("C")


class Wanted(NamedTuple):
    """What a `take` asks for."""

    num: int
    lease_us: int
    wait: float | None
    """Seconds; None for as long as it takes."""


class Core:
    """One delay queue in one process."""

    def __init__(self) -> None:
        self.seats: Final = Seats()
        self.held = 0
        """How many items its consumers hold."""
        self._orphans: list[Claimed] = []
        """What was claimed by calls that did not live to hand it out."""

    # -- pushing

    def prepare(
        self, data: Iterable[Any], delay: Duration | None, at: datetime | None, ids: Any
    ) -> list[Prepared]:
        """Make data ready to be pushed."""
        if isinstance(data, str | bytes | dict) or not isinstance(data, Iterable):
            raise UsageError(
                f"push_many wants a list of what is to be pushed, not {type(data).__name__}; "
                "push(...) pushes one."
            )
        due = produce.when(delay, at)
        bodies = [encode_item(one) for one in data]
        given = [new_id() for _ in bodies] if ids is None else checked_ids(ids)
        if len(given) != len(bodies):
            raise UsageError(f"There are {len(bodies)} data and {len(given)} ids; give one each.")
        return [
            Prepared(check_name(id, "id"), due, DEFAULT_PRIORITY, body)
            for id, body in zip(given, bodies, strict=True)
        ]

    def beginning(self, place: Place[Any]) -> Steps[None]:
        """Before the first push: a queue that is new keeps nothing of what was taken."""
        if not place.known:
            yield Ask([manage.configure(place.keys, RETENTION, only_new=True)])

    # -- taking for good

    def popping(self, keys: Keys, count: int, previous_us: int) -> Steps[list[Any]]:
        """Data that are due, for good."""
        left = self.seats.left_over
        found = [left.popleft() for _ in range(min(count, len(left)))]
        seat = self.seats.take("pop")
        try:
            while len(found) < count:
                asked = min(count - len(found), consume.MAX_POP)
                reply = yield from ask(seat.pop(keys, asked, previous_us))
                _hear_out(seat, reply, reply.refused, keys)
                data, unread = decoded(reply)
                found += data
                if unread:
                    yield from set_aside(keys, unread)
                if not reply.more and len(reply.bodies) < asked:
                    break
        except BaseException as error:  # it has gone from the server: nobody else will have it
            if not found or not isinstance(error, BideError):
                left.extend(found)
                raise
            log.warning("queue %s: gave out less than was due: %s", keys.queue, error)
        finally:
            self.seats.put(seat)
        left.extend(found[count:])  # what an earlier call had taken, but not handed out
        return found[:count]

    # -- taking under a lease

    def taking(self, keys: Keys, wanted: Wanted) -> Steps[list[Held]]:
        """Items that are due, under a lease; waits for the first of them."""
        ends = None if wanted.wait is None else time.monotonic() + wanted.wait
        if self._orphans:
            yield from self.giving_back(keys)
        seat = self.seats.take("claim")
        try:
            while True:
                sent = time.monotonic()
                is_last = ends is not None and sent >= ends
                reply = yield from self._claim(seat, keys, wanted, arm=0 if is_last else 1)
                try:
                    claimed = yield from sorted_out(keys, reply, wanted.num)
                    if claimed or (is_last and not _looks_again(reply)):
                        yield from self._pass_on(seat, keys, wanted)
                        return claimed
                except BaseException:
                    self._orphans += reply.jobs
                    raise
                if not _looks_again(reply):
                    until = sent + (reply.until_us - reply.now_us) / 1e6
                    yield from _wait(seat, until if ends is None else min(until, ends))
        finally:
            self.seats.put(seat)

    def _claim(self, seat: Seat, keys: Keys, wanted: Wanted, arm: int) -> Steps[Claim]:
        command = seat.claim(keys, wanted.num, wanted.lease_us, self.held, arm)
        reply = yield from ask(command)
        _hear_out(seat, reply, 0, keys)
        seat.keeps_time = reply.until_us > 0
        return reply

    def _pass_on(self, seat: Seat, keys: Keys, wanted: Wanted) -> Steps[None]:
        """A hint that came too late for this one is another's."""
        if (yield Hush()):
            yield from self._claim(seat, keys, wanted._replace(num=0), arm=0)

    def giving_back(self, keys: Keys) -> Steps[None]:
        """Let go of what calls that were cancelled have taken, and of what they promised."""
        unfinished = self.seats.take_unfinished()
        try:
            orphans, self._orphans = self._orphans, []
            yield from settle_all(keys, [release(job) for job in orphans])
            for seat in unfinished:
                if seat.owes:
                    wanted = Wanted(1, round(LEASE * 1e6), 0)
                    reply = yield from self._claim(seat, keys, wanted, arm=0)
                    yield from settle_all(keys, [release(job) for job in reply.jobs])
                yield from ask(consume.leave(keys, seat.name))
                seat.keeps_time = False
        except BideError as error:
            log.warning("queue %s: some items come back when leases end: %s", keys.queue, error)
        finally:
            for seat in unfinished:
                self.seats.put(seat)

    def leaving(self, keys: Keys) -> Steps[None]:
        """Have the server forget this process's seats, but for those that it owes an answer."""
        seats: list[Seat] = []
        try:
            yield from self.giving_back(keys)
            seats = self.seats.take_all()
            names = [seat.name for seat in seats if not seat.owes]
            yield from ask_all([consume.leave(keys, name) for name in names])
        except BideError as error:  # it forgets them by and by
            log.info("queue %s: left without a word: %s", keys.queue, error)
        finally:
            for seat in seats:
                self.seats.put(seat)

    # -- answering

    def answering(
        self, keys: Keys, items: Sequence[ItemCore], outcome: Outcome, when: str, data: bytes
    ) -> Steps[list[bool]]:
        """Say how items ended; whether each answer counts."""
        for item in items:
            if item.answer not in (None, outcome):
                raise UsageError(
                    f"Item {item.id} was answered before ({_SAID.get(item.answer, item.answer)}); "
                    "an item is answered once."
                )
        new = [item for item in items if item.answer is None]
        settles = [Settle(item.id, item.token, outcome, when, data) for item in new]
        verdicts = yield from settle_all(keys, settles)
        for item, verdict in zip(new, verdicts, strict=True):
            item.answer, item.counted = outcome, verdict == "ok"
            if verdict != "ok":
                log.warning(
                    "item %s: the answer (%s) came after its lease had passed to another, and was "
                    "refused",
                    item.id,
                    _SAID.get(outcome, outcome),
                )
        return [item.counted for item in items]

    def ending(
        self, keys: Keys, items: Sequence[ItemCore], error: BaseException | None
    ) -> Steps[None]:
        """Give back what was not answered, at the end of a `with` block.

        What raises is no fault of those who listen to the server: they are given back as they came.
        """
        self.held -= len(items)
        left = [item for item in items if item.answer is None]
        try:
            if isinstance(error, Exception):
                yield from self.answering(keys, left, "retry", "+0", encode_error(error))
            else:
                yield from self.answering(keys, left, "release", "", b"")
        except BideError as failed:
            log.warning(
                "queue %s: %d items come back when their leases end: %s",
                keys.queue,
                len(left),
                failed,
            )

    def extending(
        self, keys: Keys, items: Sequence[ItemCore], lease: Duration | None
    ) -> Steps[list[bool]]:
        """Renew leases; whether each is still held."""
        lease_us = None if lease is None else checked_lease(lease)
        words: list[str] = []
        for i in range(0, len(items), consume.MAX_SETTLES):
            some = items[i : i + consume.MAX_SETTLES]
            held = [(item.id, item.token) for item in some]
            words += yield from ask(consume.extend(keys, lease_us or some[0].lease_us, held))
        return [word in ("ok", "asked") for word in words]

    # -- looking and removing

    def peeking(self, keys: Keys, count: int, within_us: int | None) -> Steps[list[ItemSeen]]:
        """What comes next, in the order in which it is due."""
        inspect.check_count(count, inspect.MAX_UPCOMING)
        commands: list[Command[Any]] = [inspect.listing(keys, State.WAITING, 0, count)]
        if within_us != 0:
            commands.append(inspect.upcoming(keys, within_us or 0, count))
        waiting, *upcoming = yield from ask_all(commands)
        delayed = [id for some in upcoming for id, _ in some]
        seen = yield from self._seeing(keys, [*waiting, *delayed])
        due = [item for item in seen if item.state in (State.DELAYED, State.WAITING)]
        return sorted(due, key=lambda item: (item.due, item.id))[:count]

    def listing(self, keys: Keys, state: str, start: int, count: int) -> Steps[list[ItemSeen]]:
        """A page of the items in one state."""
        ids = yield from ask(inspect.listing(keys, state, start, count))
        return (yield from self._seeing(keys, ids))

    def _seeing(self, keys: Keys, ids: Sequence[str]) -> Steps[list[ItemSeen]]:
        pages = yield from ask_all(inspect.fetch_many(keys, list(dict.fromkeys(ids))))
        found = []
        for snapshot in (snapshot for page in pages for snapshot in page):
            try:
                found.append(ItemSeen.read(snapshot))
            except PayloadError:
                log.warning("item %s is not JSON; see `bide jobs show`", snapshot.id)
        return [item for item in found if item is not None]

    def removing(self, keys: Keys, ids: Sequence[str]) -> Steps[list[str]]:
        """Take items back that nobody holds; of those that have failed, forget them."""
        ids = checked_ids(ids)
        cancels = [manage.cancel(keys, some, running=False) for some in chunks(ids)]
        words = [word for words in (yield from ask_all(cancels)) for word in words]
        failed = [id for id, word in zip(ids, words, strict=True) if word == State.FAILED]
        yield from ask_all([manage.delete(keys, some) for some in chunks(failed)])
        removed = ("ok", State.CANCELLED, State.FAILED)
        return ["ok" if word in removed else word for word in words]


_SAID: Final[dict[str | None, str]] = {
    "complete": "ack",
    "retry": "nack",
    "fail": "fail",
    "release": "given back",
}


def wanted(num: int, lease: Duration, wait: Duration | None) -> Wanted:
    """What a `take` asks for.

    Raises:
        UsageError: one of them cannot be meant.
    """
    wait_us = None if wait is None else to_us(wait, "wait")
    seconds = None if wait_us is None else wait_us / 1e6
    return Wanted(checked_num(num, consume.MAX_CLAIM), checked_lease(lease), seconds)


def checked_num(num: int, most: int | None = None) -> int:
    """How many items are asked for.

    Raises:
        UsageError: it is no number of items.
    """
    if isinstance(num, bool) or not isinstance(num, int) or num < 1 or (most and num > most):
        raise UsageError(
            f"num={num!r} is no number of items; give 1 {f'to {most}' if most else 'or more'}."
        )
    return num


def checked_lease(lease: Duration) -> int:
    """A lease in microseconds.

    Raises:
        UsageError: it is not a duration, or none at all.
    """
    lease_us = to_us(lease, "lease")
    if lease_us == 0:
        raise UsageError("lease=0 would hold nothing; give as long as the work on an item takes.")
    return lease_us


def usable(place: Place[C]) -> Place[C]:
    """The place, if it has a server.

    Raises:
        UsageError: functions run at once there, and there is nothing that could hold data.
    """
    if place.stand_in is not None:
        raise UsageError(
            "bide.testing.eager() runs functions in place of a server, and has none that holds "
            "data; test a DelayQueue with the `bide` fixture, or TestBed."
        )
    return place


def _hear_out(seat: Seat, reply: Claim | Popped, refused: int, keys: Keys) -> None:
    """Note a reply to the seat's latest call."""
    seat.answered()
    if reply.stale:
        raise ServerRefused("The server has seen a later call of this consumer.")
    if refused:
        log.warning(
            "queue %s: met %d jobs, which are no data; they have failed, and stay to be retried "
            "once a Worker serves the queue",
            keys.queue,
            refused,
        )


def _looks_again(reply: Claim) -> bool:
    """Whether a claim that brought nothing did not look, or not at everything."""
    return reply.more or reply.drain


def _wait(seat: Seat, until: float) -> Steps[None]:
    """Wait for news, at most until then."""
    while time.monotonic() < until:
        caller = yield Hear(until)
        if caller is None or seat.is_news(caller):
            return
