"""The logic that blocking and awaited delay queues share, without I/O."""

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
"""Taken items are not kept, except for 15 s, so that a repeated call finds what it took."""

FIRST_DELAY, LONGEST_DELAY = 1_000_000, 300_000_000
"""Microseconds before an item that `each` went past comes again: the first, and the longest after
doubling."""


class DelayCore:
    """One delay queue in one process."""

    def __init__(self) -> None:
        self.sessions: Final = ConsumerSessions()
        self._marked: ServerBinding[Any] | None = None
        """The binding at which the queue is known to be marked as a data queue."""
        self._looked: ServerBinding[Any] | None = None
        """The binding at which a consumer has checked for that mark."""

    # -- pushing

    def prepare(
        self,
        data: Iterable[Any],
        delay: Duration | None,
        at: datetime | None,
        ids: Any,
        durability: Durability | None,
    ) -> list[Prepared]:
        """Prepare data for a push."""
        if isinstance(data, str | bytes | dict) or not isinstance(data, Iterable):
            raise UsageError(
                f"push_many wants a list of what is to be pushed, not {type(data).__name__}; "
                "push(...) pushes one."
            )
        due, options = enqueue_commands.when(delay, at), check_durability(durability)
        bodies = [encode_item(one) for one in data]
        given = [new_id() for _ in bodies] if ids is None else checked_ids(ids)
        if len(given) != len(bodies):
            raise UsageError(f"There are {len(bodies)} data and {len(given)} ids; give one each.")
        return [
            Prepared(check_name(id, "id"), due, DEFAULT_PRIORITY, body, options)
            for id, body in zip(given, bodies, strict=True)
        ]

    def beginning(
        self, binding: ServerBinding[Any], pushes: bool, jobs: Sequence[Prepared] = ()
    ) -> Steps[None]:
        """Before the first push or read, mark a queue that is new or has items as a data queue.

        No worker serves a data queue, and it keeps no taken items. If the server may refuse the
        durability of a push, this asks before anything is written. A push repeats the mark as often
        as it registers the queue, because the queue may have been removed meanwhile.
        """
        if not binding.makes_known if pushes else binding in (self._marked, self._looked):
            return
        self._looked = binding
        if kinds := binding.kinds(jobs):
            yield from ask(enqueue_commands.enqueue(binding.keys, [], kinds))
        (marked,) = yield Send([job_commands.mark_data(binding.keys, RETENTION, pushes)])
        if marked is True:
            self._marked = binding

    def _is_data(self, keys: Keys) -> bool:
        return self._marked is not None and self._marked.keys is keys

    def _has_found(self, keys: Keys) -> None:
        """Note that the queue held data: if it is not marked, the next call checks again."""
        if not self._is_data(keys):
            self._looked = None

    # -- popping

    def popping(self, keys: Keys, count: int, previous_us: int) -> Steps[list[Any]]:
        """Remove due items, and return their data."""
        found = self.sessions.take_left_over(count)
        seal, session = Seal(config.signing_keys(), keys), self.sessions.take("pop")
        try:
            while len(found) < count:
                asked = min(count - len(found), worker_commands.MAX_POP)
                reply = yield from ask(session.pop(keys, asked, previous_us))
                _note_reply(session, reply)
                data, refused = decoded(seal, reply)
                found += data
                if refused:
                    yield from refuse_all(keys, refused)
                warn_of_lost(keys, reply)
                if not reply.more and len(reply.bodies) < asked:
                    break
        except BaseException as error:  # the server has removed them: only this process has them
            if not found or not isinstance(error, BideError):
                self.sessions.leave_over(found)
                raise
            log.warning("queue %s: gave out less than was due: %s", keys.queue, error)
        finally:
            self.sessions.put(session)
        if found:
            self._has_found(keys)
        self.sessions.leave_over(
            found[count:]
        )  # more than `count` where an earlier call had left data over
        return found[:count]

    # -- taking under a lease

    def taking(self, keys: Keys, options: TakeOptions) -> Steps[list[Held]]:
        """Claim due items under a lease; wait for the first of them."""
        ends = None if options.wait is None else time.monotonic() + options.wait
        if self.sessions.has_unclaimed:
            yield from self.giving_back(keys)
        seal, session = Seal(config.signing_keys(), keys), self.sessions.take("claim")
        in_hand: list[Claimed] = []
        not_data: list[Claimed] = []
        try:
            while True:
                sent = time.monotonic()
                is_last = ends is not None and sent >= ends
                arm = 0 if is_last else 1
                reply = yield from self._claim(session, keys, options, len(not_data), arm)
                in_hand += reply.jobs
                found = check_reply(seal, reply, options.num)
                not_data += found.not_data
                again = reply.more or reply.drain or len(reply.jobs) >= options.num
                ended = bool(found.items) or not again or len(not_data) >= MOST_REFUSED
                settles, problem = found.settles, None
                if not_data and ended:
                    more, problem = decide(keys, not_data, bool(found.items), self._is_data(keys))
                    settles, not_data = settles + more, []
                yield from settle_all(keys, settles)
                in_hand = [*not_data, *(job for job, _ in found.items)]
                if problem is not None:
                    raise problem
                if found.items or (is_last and not again):
                    yield from self._pass_on(session, keys, options)
                    if found.items:
                        self._has_found(keys)
                    return found.items
                if not again:
                    until = sent + (reply.until_us - reply.now_us) / 1e6
                    if (yield from _wait(session, until if ends is None else min(until, ends))):
                        yield from self._stop_waiting(session, keys, options)
                        return []
        except BaseException:
            self.sessions.keep_unclaimed(in_hand)
            raise
        finally:
            self.sessions.put(session)

    def _claim(
        self, session: ConsumerSession, keys: Keys, options: TakeOptions, more: int, arm: int
    ) -> Steps[Claim]:
        """Claim items; `more` is the number of claimed jobs that are not counted as held yet."""
        busy = self.sessions.held + more
        reply = yield from ask(session.claim(keys, options.num, options.lease_us, busy, arm))
        _note_reply(session, reply)
        session.is_timekeeper = reply.until_us > 0
        return reply

    def _pass_on(self, session: ConsumerSession, keys: Keys, options: TakeOptions) -> Steps[None]:
        """Pass a wake-up message that came too late on to another consumer."""
        if (yield CloseListener()):
            yield from self._claim(session, keys, options._replace(num=0), 0, arm=0)

    def _stop_waiting(
        self, session: ConsumerSession, keys: Keys, options: TakeOptions
    ) -> Steps[None]:
        """Leave after `close`, so that other consumers do not rely on this one."""
        try:
            yield from self._pass_on(session, keys, options)
            yield from ask(worker_commands.worker_leave(keys, session.name))
            session.is_timekeeper = False
        except BideError as error:  # the server forgets it later
            log.info("queue %s: left without a word: %s", keys.queue, error)

    def giving_back(self, keys: Keys) -> Steps[bool]:
        """Return items that cancelled calls have claimed, and give up their timekeeping.

        Returns:
            Whether the server answered.
        """
        unfinished = self.sessions.take_unfinished()
        try:
            unclaimed = self.sessions.take_unclaimed()
            yield from settle_all(keys, [release(job) for job in unclaimed])
            for session in unfinished:
                if session.pending_reply:
                    options = TakeOptions(1, round(LEASE * 1e6), 0)
                    reply = yield from self._claim(session, keys, options, 0, arm=0)
                    yield from settle_all(keys, [release(job) for job in reply.jobs])
                yield from ask(worker_commands.worker_leave(keys, session.name))
                session.is_timekeeper = False
        except BideError as error:
            log.warning("queue %s: some items come back when leases end: %s", keys.queue, error)
            return False
        finally:
            for session in unfinished:
                self.sessions.put(session)
        return True

    def leaving(self, keys: Keys) -> Steps[None]:
        """Remove this process's sessions from the server, except those with a pending reply."""
        sessions: list[ConsumerSession] = []
        try:
            if (yield from self.giving_back(keys)):
                sessions = self.sessions.take_all()
                names = [session.name for session in sessions if not session.pending_reply]
                yield from ask_all([worker_commands.worker_leave(keys, name) for name in names])
        except BideError as error:  # the server forgets them later
            log.info("queue %s: left without a word: %s", keys.queue, error)
        finally:
            for session in sessions:
                self.sessions.put(session)

    # -- answering

    def answering(
        self, keys: Keys, items: Sequence[ItemCore], outcome: Outcome, when: str, data: bytes
    ) -> Steps[list[bool]]:
        """Send the answers for items; return whether each answer counts."""
        for item in items:
            if item.answer not in (None, outcome):
                raise UsageError(
                    f"Item {short_id(item.id)} was answered before "
                    f"({_ANSWERS.get(item.answer, item.answer)}); an item is answered once."
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
                    _ANSWERS.get(outcome, outcome),
                )
        return [item.counted for item in items]

    def ending(
        self, keys: Keys, items: Sequence[ItemCore], error: BaseException | None
    ) -> Steps[None]:
        """Return unanswered items to the queue, at the end of a `with` block.

        After an exception, this counts as an attempt. Otherwise the items return as they came.
        """
        left = [item for item in self.sessions.let_go(items) if item.answer is None]
        yield from self.giving_up(keys, left, error)

    def giving_up(
        self, keys: Keys, items: Sequence[ItemCore], error: BaseException | None
    ) -> Steps[None]:
        """Return items to the queue: after an exception, as failed deliveries."""
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
        """Return items that `each` went past without an answer, with a delay that doubles.

        If this fails, the error is logged: the items return when their leases end.
        """
        if not items:
            return
        log.warning(
            "queue %s: %d items were passed over without an answer, and come again after a while; "
            "ack() what is dealt with",
            keys.queue,
            len(items),
        )
        why = encode_error(UsageError("each() went past this item, and it had no answer."))
        try:
            for item in items:
                delay = min(FIRST_DELAY * 2 ** min(item.attempt - 1, 20), LONGEST_DELAY)
                yield from self.answering(keys, [item], "retry", f"+{delay}", why)
        except BideError as failed:
            log.warning("queue %s: they come when their leases end: %s", keys.queue, failed)

    def extending(
        self, keys: Keys, items: Sequence[ItemCore], lease: Duration | None
    ) -> Steps[list[bool]]:
        """Renew leases; return whether each item is still held."""
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
        """Return the next items in due order."""
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
        """Return a page of the items in one state."""
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
        """Cancel items that no consumer holds, and delete failed items."""
        ids = checked_ids(ids)
        cancels = [job_commands.cancel(keys, some, running=False) for some in chunks(ids)]
        words = [word for words in (yield from ask_all(cancels)) for word in words]
        failed = [id for id, word in zip(ids, words, strict=True) if word == State.FAILED]
        yield from ask_all([job_commands.delete(keys, some) for some in chunks(failed)])
        removed = ("ok", State.CANCELLED, State.FAILED)
        return ["ok" if word in removed else word for word in words]


_ANSWERS: Final[dict[str | None, str]] = {
    "complete": "ack",
    "retry": "nack",
    "fail": "fail",
    "release": "given back",
}


def _note_reply(session: ConsumerSession, reply: Claim | Popped) -> None:
    """Note the reply to the session's latest call."""
    session.answered()
    if reply.stale:
        raise ServerRefused("The server has seen a later call of this consumer.")


def _wait(session: ConsumerSession, until: float) -> Steps[bool]:
    """Wait for a wake-up message until then; return whether the queue was closed instead."""
    while time.monotonic() < until:
        caller = yield WaitForWakeUp(until)
        if caller is CLOSED:
            return True
        if caller is None or session.is_news(caller):
            return False
    return False
