"""What the blocking and the awaited delay queue decide alike, decided once, without I/O."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from bide.client import config
from bide.errors import BideError, PayloadError, ServerRefused, UsageError
from bide.logs import Log
from bide.model.durations import Duration
from bide.model.ids import check_name, new_id, short_id
from bide.model.job import Claimed, State
from bide.model.limits import Retention
from bide.model.options import Durability, check_durability
from bide.model.payload.body import encode_error, encode_item
from bide.model.payload.signing import Seal
from bide.protocol.command import Command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Claim, Outcome, Popped, Settle
from bide.protocol.keys import DEFAULT_PRIORITY, Keys
from bide.queue.binding import ServerBinding
from bide.queue.core import checked_ids, chunks
from bide.queue.delay.items import (
    CLOSED,
    LEASE,
    CloseListener,
    ItemCore,
    ItemInfo,
    Send,
    Steps,
    TakeOptions,
    WaitForWakeUp,
    ask,
    ask_all,
    checked_lease,
)
from bide.queue.delay.sessions import (
    MOST_REFUSED,
    ConsumerSession,
    ConsumerSessions,
    Held,
    check_reply,
    decide,
    decoded,
    refuse_all,
    release,
    settle_all,
    warn_of_lost,
)

log = Log("bide.queue.delay")

RETENTION: Final = Retention(completed=0, cancelled=0)
"""What is taken is of no more use; so that a repeated call finds what it did, it stays for 15 s."""

FIRST_DELAY, LONGEST_DELAY = 1_000_000, 300_000_000
"""Microseconds after which an item comes again that `each` went past: doubling, and at most."""


class DelayCore:
    """One delay queue in one process."""

    def __init__(self) -> None:
        self.seats: Final = ConsumerSessions()
        self._marked: ServerBinding[Any] | None = None
        """Where the queue is known to be marked as one of data."""
        self._looked: ServerBinding[Any] | None = None
        """Where a consumer has looked whether it is."""

    # -- pushing

    def prepare(
        self,
        data: Iterable[Any],
        delay: Duration | None,
        at: datetime | None,
        ids: Any,
        durability: Durability | None,
    ) -> list[Prepared]:
        """Make data ready to be pushed."""
        if isinstance(data, str | bytes | dict) or not isinstance(data, Iterable):
            raise UsageError(
                f"push_many wants a list of what is to be pushed, not {type(data).__name__}; "
                "push(...) pushes one."
            )
        due, wanted = enqueue_commands.when(delay, at), check_durability(durability)
        bodies = [encode_item(one) for one in data]
        given = [new_id() for _ in bodies] if ids is None else checked_ids(ids)
        if len(given) != len(bodies):
            raise UsageError(f"There are {len(bodies)} data and {len(given)} ids; give one each.")
        return [
            Prepared(check_name(id, "id"), due, DEFAULT_PRIORITY, body, wanted)
            for id, body in zip(given, bodies, strict=True)
        ]

    def beginning(
        self, place: ServerBinding[Any], pushes: bool, jobs: Sequence[Prepared] = ()
    ) -> Steps[None]:
        """Before the first push or look: a queue that is new, or has items, is one of data.

        Then no worker serves it, and it keeps nothing of what was taken. Where what is to be pushed
        may be refused for its durability, that is asked before anything is written. A push looks
        again as often as it makes the queue known: somebody may have had it forgotten.
        """
        if not place.makes_known if pushes else place in (self._marked, self._looked):
            return
        self._looked = place
        if kinds := place.kinds(jobs):
            yield from ask(enqueue_commands.enqueue(place.keys, [], kinds))
        (marked,) = yield Send([job_commands.mark_data(place.keys, RETENTION, pushes)])
        if marked is True:
            self._marked = place

    def _is_data(self, keys: Keys) -> bool:
        return self._marked is not None and self._marked.keys is keys

    def _has_found(self, keys: Keys) -> None:
        """Data came out of a queue: if it was not marked, the next call looks again."""
        if not self._is_data(keys):
            self._looked = None

    # -- taking for good

    def popping(self, keys: Keys, count: int, previous_us: int) -> Steps[list[Any]]:
        """Data that are due, for good."""
        found = self.seats.take_left_over(count)
        seal, seat = Seal(config.signing_keys(), keys), self.seats.take("pop")
        try:
            while len(found) < count:
                asked = min(count - len(found), worker_commands.MAX_POP)
                reply = yield from ask(seat.pop(keys, asked, previous_us))
                _hear_out(seat, reply)
                data, refused = decoded(seal, reply)
                found += data
                if refused:
                    yield from refuse_all(keys, refused)
                warn_of_lost(keys, reply)
                if not reply.more and len(reply.bodies) < asked:
                    break
        except BaseException as error:  # it has gone from the server: nobody else will have it
            if not found or not isinstance(error, BideError):
                self.seats.leave_over(found)
                raise
            log.warning("queue %s: gave out less than was due: %s", keys.queue, error)
        finally:
            self.seats.put(seat)
        if found:
            self._has_found(keys)
        self.seats.leave_over(found[count:])  # what an earlier call had taken, but not handed out
        return found[:count]

    # -- taking under a lease

    def taking(self, keys: Keys, wanted: TakeOptions) -> Steps[list[Held]]:
        """Items that are due, under a lease; waits for the first of them."""
        ends = None if wanted.wait is None else time.monotonic() + wanted.wait
        if self.seats.has_orphans:
            yield from self.giving_back(keys)
        seal, seat = Seal(config.signing_keys(), keys), self.seats.take("claim")
        in_hand: list[Claimed] = []
        strangers: list[Claimed] = []
        try:
            while True:
                sent = time.monotonic()
                is_last = ends is not None and sent >= ends
                arm = 0 if is_last else 1
                reply = yield from self._claim(seat, keys, wanted, len(strangers), arm)
                in_hand += reply.jobs
                found = check_reply(seal, reply, wanted.num)
                strangers += found.strangers
                again = reply.more or reply.drain or len(reply.jobs) >= wanted.num
                ended = bool(found.items) or not again or len(strangers) >= MOST_REFUSED
                settles, problem = found.settles, None
                if strangers and ended:
                    more, problem = decide(keys, strangers, bool(found.items), self._is_data(keys))
                    settles, strangers = settles + more, []
                yield from settle_all(keys, settles)
                in_hand = [*strangers, *(job for job, _ in found.items)]
                if problem is not None:
                    raise problem
                if found.items or (is_last and not again):
                    yield from self._pass_on(seat, keys, wanted)
                    if found.items:
                        self._has_found(keys)
                    return found.items
                if not again:
                    until = sent + (reply.until_us - reply.now_us) / 1e6
                    if (yield from _wait(seat, until if ends is None else min(until, ends))):
                        yield from self._stop_waiting(seat, keys, wanted)
                        return []
        except BaseException:
            self.seats.orphan(in_hand)
            raise
        finally:
            self.seats.put(seat)

    def _claim(
        self, seat: ConsumerSession, keys: Keys, wanted: TakeOptions, more: int, arm: int
    ) -> Steps[Claim]:
        """Claim; `more` are in hand that nobody holds yet."""
        busy = self.seats.held + more
        reply = yield from ask(seat.claim(keys, wanted.num, wanted.lease_us, busy, arm))
        _hear_out(seat, reply)
        seat.keeps_time = reply.until_us > 0
        return reply

    def _pass_on(self, seat: ConsumerSession, keys: Keys, wanted: TakeOptions) -> Steps[None]:
        """A hint that came too late for this one is another's."""
        if (yield CloseListener()):
            yield from self._claim(seat, keys, wanted._replace(num=0), 0, arm=0)

    def _stop_waiting(self, seat: ConsumerSession, keys: Keys, wanted: TakeOptions) -> Steps[None]:
        """The delay queue was closed: others are not to count on this one."""
        try:
            yield from self._pass_on(seat, keys, wanted)
            yield from ask(worker_commands.worker_leave(keys, seat.name))
            seat.keeps_time = False
        except BideError as error:  # the server forgets it by and by
            log.info("queue %s: left without a word: %s", keys.queue, error)

    def giving_back(self, keys: Keys) -> Steps[bool]:
        """Let go of what calls that were cancelled have taken, and of what they promised.

        Returns:
            Whether the server answered.
        """
        unfinished = self.seats.take_unfinished()
        try:
            orphans = self.seats.take_orphans()
            yield from settle_all(keys, [release(job) for job in orphans])
            for seat in unfinished:
                if seat.owes:
                    wanted = TakeOptions(1, round(LEASE * 1e6), 0)
                    reply = yield from self._claim(seat, keys, wanted, 0, arm=0)
                    yield from settle_all(keys, [release(job) for job in reply.jobs])
                yield from ask(worker_commands.worker_leave(keys, seat.name))
                seat.keeps_time = False
        except BideError as error:
            log.warning("queue %s: some items come back when leases end: %s", keys.queue, error)
            return False
        finally:
            for seat in unfinished:
                self.seats.put(seat)
        return True

    def leaving(self, keys: Keys) -> Steps[None]:
        """Have the server forget this process's seats, but for those that it owes an answer."""
        seats: list[ConsumerSession] = []
        try:
            if (yield from self.giving_back(keys)):
                seats = self.seats.take_all()
                names = [seat.name for seat in seats if not seat.owes]
                yield from ask_all([worker_commands.worker_leave(keys, name) for name in names])
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
                    f"Item {short_id(item.id)} was answered before "
                    f"({_SAID.get(item.answer, item.answer)}); an item is answered once."
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
                    short_id(item.id),
                    _SAID.get(outcome, outcome),
                )
        return [item.counted for item in items]

    def ending(
        self, keys: Keys, items: Sequence[ItemCore], error: BaseException | None
    ) -> Steps[None]:
        """Give back what was not answered, at the end of a `with` block.

        What raises is no fault of those who listen to the server: they are given back as they came.
        """
        left = [item for item in self.seats.let_go(items) if item.answer is None]
        yield from self.giving_up(keys, left, error)

    def giving_up(
        self, keys: Keys, items: Sequence[ItemCore], error: BaseException | None
    ) -> Steps[None]:
        """Give items back: after an error as deliveries that failed."""
        try:
            if isinstance(error, Exception):
                yield from self.answering(keys, items, "retry", "+0", encode_error(error))
            else:
                yield from self.answering(keys, items, "release", "", b"")
        except BideError as failed:
            log.warning(
                "queue %s: %d items come back when their leases end: %s",
                keys.queue,
                len(items),
                failed,
            )

    def passing_over(self, keys: Keys, items: Sequence[ItemCore]) -> Steps[None]:
        """Give back what `each` went past without an answer: later and later, for it is a mistake.

        What raises is no fault of those who iterate: the items come back when their leases end.
        """
        if not items:
            return
        log.warning(
            "queue %s: %d items were passed over without an answer, and come again after a while; "
            "ack() what is dealt with",
            keys.queue,
            len(items),
        )
        why = encode_error(UsageError("each() went past this item, and nobody had answered it."))
        try:
            for item in items:
                delay = min(FIRST_DELAY * 2 ** min(item.attempt - 1, 20), LONGEST_DELAY)
                yield from self.answering(keys, [item], "retry", f"+{delay}", why)
        except BideError as failed:
            log.warning("queue %s: they come when their leases end: %s", keys.queue, failed)

    def extending(
        self, keys: Keys, items: Sequence[ItemCore], lease: Duration | None
    ) -> Steps[list[bool]]:
        """Renew leases; whether each is still held."""
        lease_us = None if lease is None else checked_lease(lease)
        words: list[str] = []
        for i in range(0, len(items), worker_commands.MAX_SETTLES):
            some = items[i : i + worker_commands.MAX_SETTLES]
            held = [(item.id, item.token) for item in some]
            words += yield from ask(
                worker_commands.extend(keys, lease_us or some[0].lease_us, held)
            )
        return [word in ("ok", "asked") for word in words]

    # -- looking and removing

    def peeking(self, keys: Keys, count: int, within_us: int | None) -> Steps[list[ItemInfo]]:
        """What comes next, in the order in which it is due."""
        job_commands.check_count(count, job_commands.MAX_UPCOMING)
        commands: list[Command[Any]] = [job_commands.listing(keys, State.WAITING, 0, count)]
        if within_us != 0:
            commands.append(job_commands.upcoming(keys, within_us or 0, count))
        waiting, *upcoming = yield from ask_all(commands)
        delayed = [id for some in upcoming for id, _ in some]
        seen = yield from self._seeing(keys, [*waiting, *delayed])
        due = [item for item in seen if item.state in (State.DELAYED, State.WAITING)]
        return sorted(due, key=lambda item: (item.due, item.id))[:count]

    def listing(self, keys: Keys, state: str, start: int, count: int) -> Steps[list[ItemInfo]]:
        """A page of the items in one state."""
        ids = yield from ask(job_commands.listing(keys, state, start, count))
        return (yield from self._seeing(keys, ids))

    def _seeing(self, keys: Keys, ids: Sequence[str]) -> Steps[list[ItemInfo]]:
        pages = yield from ask_all(job_commands.fetch_many(keys, list(dict.fromkeys(ids))))
        found = []
        for snapshot in (snapshot for page in pages for snapshot in page):
            try:
                found.append(ItemInfo.read(snapshot))
            except PayloadError:
                log.warning("item %s is not JSON; see `bide jobs show`", short_id(snapshot.id))
        return [item for item in found if item is not None]

    def removing(self, keys: Keys, ids: Sequence[str]) -> Steps[list[str]]:
        """Take items back that nobody holds; of those that have failed, forget them."""
        ids = checked_ids(ids)
        cancels = [job_commands.cancel(keys, some, running=False) for some in chunks(ids)]
        words = [word for words in (yield from ask_all(cancels)) for word in words]
        failed = [id for id, word in zip(ids, words, strict=True) if word == State.FAILED]
        yield from ask_all([job_commands.delete(keys, some) for some in chunks(failed)])
        removed = ("ok", State.CANCELLED, State.FAILED)
        return ["ok" if word in removed else word for word in words]


_SAID: Final[dict[str | None, str]] = {
    "complete": "ack",
    "retry": "nack",
    "fail": "fail",
    "release": "given back",
}


def _hear_out(seat: ConsumerSession, reply: Claim | Popped) -> None:
    """Note a reply to the seat's latest call."""
    seat.answered()
    if reply.stale:
        raise ServerRefused("The server has seen a later call of this consumer.")


def _wait(seat: ConsumerSession, until: float) -> Steps[bool]:
    """Wait for news, at most until then; whether the delay queue was closed instead."""
    while time.monotonic() < until:
        caller = yield WaitForWakeUp(until)
        if caller is CLOSED:
            return True
        if caller is None or seat.is_news(caller):
            return False
    return False
