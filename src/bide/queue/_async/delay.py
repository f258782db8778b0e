"""Delay queues for code on an event loop."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from bide.client import aio, config
from bide.client.execute import RETRY_FOR
from bide.client.pubsub import AsyncWakeListener
from bide.client.url import GOODBYE, RedisClient
from bide.errors import BideError, PayloadError, UsageError
from bide.logs import Log, count
from bide.model.durations import Duration, to_us
from bide.model.ids import short_id
from bide.model.job import Claimed, State
from bide.model.options import Durability
from bide.model.payload.body import encode_error
from bide.model.payload.signing import Seal
from bide.protocol.commands import Command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.worker import Claim, ClaimSession, Outcome, Settle, Verdict
from bide.queue import AsyncQueue, loops
from bide.queue._async.items import AsyncItem, AsyncItems, AsyncTaking
from bide.queue.binding import ServerBinding
from bide.queue.core import checked_ids, chunks
from bide.queue.items import (
    ANSWERS,
    LEASE,
    MOST_REFUSED,
    RETENTION,
    ConsumerSessions,
    ItemCore,
    ItemInfo,
    PushResult,
    TakeOptions,
    check_reply,
    check_stale,
    checked_lease,
    checked_num,
    decide,
    decoded,
    delay_after,
    look_again,
    prepare_items,
    pushed,
    refusals,
    release,
    settles_of,
    take_options,
    usable,
    warn_of_lost,
    warn_of_unread,
)

log = Log("bide.queue.delay")


class AsyncDelayQueue(loops.AsyncDelayQueueSide):
    """A queue of data that consumers take when they are due, for event loops; safe for tasks.

    Consumers receive items in due order; items that are due at the same instant, in the order of
    their pushes. No two consumers receive the same item, unless a consumer held it with `take` for
    longer than its lease.

        orders = AsyncDelayQueue("orders")
        await orders.push({"order": 42}, delay="30m")

        async for item in orders.each():
            async with item:
                print(item.data)
    """

    def __init__(
        self,
        name: str,
        *,
        url: str | RedisClient | None = None,
        prefix: str | None = None,
        retry_for: float = RETRY_FOR,
        previous: Duration = 0,
    ) -> None:
        """Create a delay queue; nothing is sent before the first call. Arguments as for `Queue`.

        `previous` is the default of this argument in `pop`, `take` and `each`.

        Raises:
            UsageError: a name, the URL, `retry_for` or `previous` is invalid.
        """
        super().__init__()
        if isinstance(name, Mapping):
            raise UsageError(
                "A delay queue takes a name, and the server as url=; write "
                f"{type(self).__name__}('orders', url='redis://HOST:PORT/DB')."
            )
        self._previous_us: Final = to_us(previous, "previous")
        self.queue: Final = AsyncQueue(name, url=url, prefix=prefix, retry_for=retry_for)
        """The queue that holds the items; use its `counts`, `pause`, `resume` and `configure`."""
        self._sessions: Final = ConsumerSessions()
        self._marked: ServerBinding[Any] | None = None
        """The binding at which the queue is known to be marked as a data queue."""
        self._looked: ServerBinding[Any] | None = None
        """The binding at which a consumer has checked for that mark."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.queue.name!r})"

    @property
    def name(self) -> str:
        """The queue's name."""
        return self.queue.name

    # -- pushing

    async def push(
        self,
        data: Any,
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        id: str | None = None,
        durability: Durability | None = None,
    ) -> PushResult:
        """Add one item; arguments and errors as for `push_many`."""
        ids = None if id is None else [id]
        added = await self.push_many([data], delay=delay, at=at, ids=ids, durability=durability)
        return added[0]

    async def push_many(
        self,
        data: Iterable[Any],
        *,
        delay: Duration | None = None,
        at: datetime | None = None,
        ids: Sequence[str] | None = None,
        durability: Durability | None = None,
    ) -> list[PushResult]:
        """Add items: up to some thousands in one round trip.

        Args:
            data: values that JSON can encode, each at most 1 MB.
            delay: time from now until they are due; without it, they are due at once.
            at: an aware `datetime` at which they are due, instead of `delay`.
            ids: an id for each item; by default new ids. Pushing an id again adds nothing. The
                server remembers an id while its item exists, and at least 15 s longer.
            durability: what to wait for: `"local"` (the server's answer), `"replica"` or `"fsync"`.

        Raises:
            UsageError: an argument is invalid.
            PayloadError: JSON cannot encode an item, or it takes more than 1 MB.
            ServerFull: the server has reached its memory limit; some items may have been added.
            ServerUnavailable: the server did not answer, so the items may exist. Their ids are in
                the error's `job_ids`: a retry with `ids=` is safe.
            DurabilityUnavailable: the server cannot give the durability; nothing was added.
            DurabilityTimeout: the items were added, but the durability was not confirmed within
                3 s. A retry with `ids=` is safe here too.
        """
        jobs = prepare_items(data, delay, at, ids, durability)
        await self._mark(self._binding, pushes=True, jobs=jobs)
        return [pushed(job) for job in await self.queue._send(jobs)]

    # -- taking

    async def pop(self, num: int = 1, previous: Duration | None = None) -> list[Any]:
        """Remove up to `num` due items, and return their data.

        If a reply is lost and the server returns within 15 s, the call is retried and returns the
        same items. A later retry finds nothing, and logs how many items are lost. If this process
        dies, the items that it has removed are lost too. Use `take` for items that must not be
        lost.

        Args:
            num: maximum number of items.
            previous: only items that became due at least this long ago; by default that of the
                queue, which is 0 if you did not set it.

        Raises:
            UsageError: an argument is invalid, or the queue holds jobs and no data.
            ServerUnavailable: the server did not answer. A call within 15 s returns the items that
                this call has removed.
        """
        count, previous_us = checked_num(num), self._previous(previous)
        await self._mark(self._binding, pushes=False)
        return await self._pop(count, previous_us)

    def take(
        self,
        num: int = 1,
        *,
        lease: Duration = LEASE,
        wait: Duration | None = 0,
        previous: Duration | None = None,
    ) -> AsyncTaking:
        """Hold up to `num` due items under a lease, for the length of a `with` block.

        Ack each item when your work on it is done. At the end of the block, all unanswered items
        return to the queue. After an exception, this counts as an attempt; otherwise it does not.
        If the consumer dies, other consumers receive its items when the lease ends. An item whose
        consumers die again and again fails.

        Args:
            num: maximum number of items, up to 250.
            lease: how long the items are held, unless they are extended.
            wait: maximum time to wait for the first item; None for no limit. The wait also ends
                when the task is cancelled.
            previous: as for `pop`. If this is below 50 ms, an item may come up to 50 ms late. An
                item that returns to the queue may come up to 2 s late.

        Raises:
            UsageError: an argument is invalid; or, when the block is entered, the queue holds jobs
                and no data.
        """
        options = take_options(num, lease, wait, self._previous(previous))
        return AsyncTaking(self, options, self._closes)

    def each(
        self,
        *,
        num: int = 1,
        lease: Duration = LEASE,
        wait: Duration | None = None,
        previous: Duration | None = None,
    ) -> AsyncIterator[AsyncItem]:
        """Iterate over items as they become due; end after `wait` without an item.

        Use an `async with item:` block for each item. At its end the item is acked. After an
        exception the item returns to the queue, which counts as an attempt. (Without the block, the
        loop cannot distinguish an exception from its end, and returns items without using an
        attempt.) If you skip an item without an answer, a warning is logged. The item comes again
        after a delay that grows, and this counts as an attempt.

        Args as for `take`. If `num` is above 1, that many items are taken together, and all their
        leases start then. Choose a lease that covers the work on all of them, or extend it.

        Raises:
            UsageError: an argument is invalid.
        """
        return self._each(take_options(num, lease, wait, self._previous(previous)))

    # -- looking and removing

    async def length(self) -> int:
        """Return the number of items that are not taken: delayed and due."""
        counts = await self.queue.counts()
        return counts.delayed + counts.waiting

    async def peek(self, num: int = 10, *, within: Duration | None = None) -> list[ItemInfo]:
        """Return the next items, in the order in which consumers receive them, without taking them.

        Args:
            num: maximum number of items, up to 500.
            within: only items that are due within this time; 0 for items that are due now.

        Raises:
            UsageError: an argument is invalid.
        """
        within_us = None if within is None else to_us(within, "within")
        job_commands.check_count(num, job_commands.MAX_UPCOMING)
        keys = self._binding.keys
        commands: list[Command[Any]] = [job_commands.listing(keys, State.WAITING, 0, num)]
        if within_us != 0:
            commands.append(job_commands.upcoming(keys, within_us or 0, num))
        waiting, *upcoming = await self._client.run_many(commands)
        delayed = [id for some in upcoming for id, _ in some]
        seen = await self._see([*waiting, *delayed])
        due = [item for item in seen if item.state in (State.DELAYED, State.WAITING)]
        return sorted(due, key=lambda item: (item.due, item.id))[:num]

    async def items(self, state: str, start: int = 0, count: int = 50) -> list[ItemInfo]:
        """Return a page of the items in a state: `delayed`, `waiting`, `active`, `failed` ..."""
        command = job_commands.listing(self._binding.keys, state, start, count)
        ids = await self._client.run(command)
        return await self._see(ids)

    async def remove(self, ids: Sequence[str]) -> list[str]:
        """Remove items that no consumer holds, failed items too.

        Returns:
            For each item a word. `ok`: it was removed, now or before. `active`: a consumer holds
            it, so it was not removed. `completed`: it was taken recently. `gone`: it does not
            exist.
        """
        keys, ids = self._binding.keys, checked_ids(ids)
        cancels = [job_commands.cancel(keys, some, running=False) for some in chunks(ids)]
        words = [word for words in await self._client.run_many(cancels) for word in words]
        failed = [id for id, word in zip(ids, words, strict=True) if word == State.FAILED]
        await self._client.run_many([job_commands.delete(keys, some) for some in chunks(failed)])
        removed = ("ok", State.CANCELLED, State.FAILED)
        return ["ok" if word in removed else word for word in words]

    async def retry(
        self, ids: Sequence[str], delay: Duration | None = None, at: datetime | None = None
    ) -> list[str]:
        """Return failed items to the queue; return for each `ok`, its state, or `gone`."""
        return await self.queue.retry_many(ids, delay, at)

    async def clear(self) -> int:
        """Remove all items that are not taken; return their number."""
        return await self.queue.purge()

    async def close(self) -> None:
        """Close the connections; the next call opens new ones.

        If the server is unavailable, this takes at most 1 s: held items return to the queue when
        their leases end.
        If a `pop` was interrupted, and no later `pop` has returned its items, an error is logged.
        """
        await self._end_waits()
        binding = self._binding
        goodbye = aio.AsyncClient(
            binding.url, retry_for=0, reply_timeout=GOODBYE, clock=binding.clock
        )
        try:
            await self._leave(goodbye)
        finally:
            await goodbye.close()
            warn_of_unread(self.name, self._sessions)
        await self.queue.close()

    # -- what items and `take` use

    @property
    def _binding(self) -> ServerBinding[aio.AsyncClient]:
        return usable(self.queue._binding)

    @property
    def _client(self) -> aio.AsyncClient:
        return self.queue._client

    async def _mark(
        self, binding: ServerBinding[Any], pushes: bool, jobs: Sequence[Prepared] = ()
    ) -> None:
        """Before the first push or read, mark a queue that is new or has items as a data queue.

        No worker serves a data queue, and it keeps no taken items. If the server may refuse the
        durability of a push, this asks before anything is written. A push repeats the mark as often
        as it registers the queue, because the queue may have been removed meanwhile.
        """
        if not binding.makes_known if pushes else binding in (self._marked, self._looked):
            return
        self._looked = binding
        if kinds := enqueue_commands.wanted(jobs, binding.clock):
            await self._client.run(enqueue_commands.enqueue(binding.keys, [], kinds))
        mark = job_commands.mark_data(binding.keys, RETENTION, pushes)
        (marked,) = await self._client.attempt_many([mark])
        if marked is True:
            self._marked = binding

    def _previous(self, given: Duration | None) -> int:
        return self._previous_us if given is None else to_us(given, "previous")

    @property
    def _is_data(self) -> bool:
        return self._marked is not None and self._marked.keys is self.queue.keys

    def _has_found(self) -> None:
        """Note that the queue held data: if it is not marked, the next call checks again."""
        if not self._is_data:
            self._looked = None

    async def _pop(self, count: int, previous_us: int) -> list[Any]:
        with self._sessions.locked() as ours:
            found, ours.left_over = ours.left_over[:count], ours.left_over[count:]
        session = self._sessions.take("pop")
        try:
            while len(found) < count:
                asked = min(count - len(found), worker_commands.MAX_POP)
                if not await self._pop_into(found, self._client, session, asked, previous_us):
                    break
        except BaseException as error:  # the server has removed them: only this process has them
            if not found or not isinstance(error, BideError):
                with self._sessions.locked() as ours:
                    ours.left_over += found
                raise
            log.warning("queue %s: returned fewer items than were due: %s", self.name, error)
        finally:
            self._sessions.put(session)
        if found:
            self._has_found()
        # More than `count` where an earlier call had left data over.
        with self._sessions.locked() as ours:
            ours.left_over += found[count:]
        return found[:count]

    async def _pop_into(
        self,
        found: list[Any],
        client: aio.AsyncClient,
        session: ClaimSession,
        asked: int,
        previous_us: int = 0,
    ) -> bool:
        """Pop up to `asked` items; return whether there may be more.

        If the session's latest pop had no answer, the server returns what that pop has removed.
        """
        keys = self.queue.keys
        reply = await client.run(session.pop(keys, asked, previous_us))
        session.popped()
        check_stale(reply)
        data, refused = decoded(Seal(config.signing_keys(), keys), reply)
        found += data
        if refused:
            await client.run_many(refusals(keys, refused))
        warn_of_lost(keys, reply)
        return reply.more or len(reply.bodies) >= asked

    async def _begin(self, options: TakeOptions, closes: int) -> AsyncItems:
        with self._giving_back(self._give_back):
            await self._mark(self._binding, pushes=False)
            claimed = await self._take(options, closes)
        items = [AsyncItem(self, job, data, options.lease_us) for job, data in claimed]
        with self._sessions.locked() as ours:
            ours.held += len(items)
        return AsyncItems(self, items)

    async def _take(self, options: TakeOptions, closes: int) -> list[tuple[Claimed, Any]]:
        """Claim due items under a lease; wait for the first of them.

        `closes` is the number of closes that the caller knew of when it started.
        """
        ends = None if options.wait is None else time.monotonic() + options.wait
        if self._sessions.unclaimed:
            await self._give_back()
        client, keys = self._client, self.queue.keys
        seal, session = Seal(config.signing_keys(), keys), self._sessions.take("claim")
        listener: AsyncWakeListener | None = None
        in_hand: list[Claimed] = []
        not_data: list[Claimed] = []
        try:
            while True:
                is_last = ends is not None and time.monotonic() >= ends
                arm = 0 if is_last or options.previous_us else 1
                reply = await self._claim(client, session, options, len(not_data), arm)
                in_hand += reply.jobs
                found = check_reply(seal, reply, options.num)
                not_data += found.not_data
                again = reply.more or reply.drain or len(reply.jobs) >= options.num
                ended = bool(found.items) or not again or len(not_data) >= MOST_REFUSED
                settles, problem = found.settles, None
                if not_data and ended:
                    more, problem = decide(keys, not_data, bool(found.items), self._is_data)
                    settles, not_data = settles + more, []
                await self._settle(client, settles)
                in_hand = [*not_data, *(job for job, _ in found.items)]
                if problem is not None:
                    raise problem
                if found.items or (is_last and not again):
                    heard, listener = listener, None
                    await self._pass_on(heard, session, options)
                    if found.items:
                        self._has_found()
                    return found.items
                until = session.until if ends is None else min(session.until, ends)
                if not again and time.monotonic() < until:
                    if options.previous_us:
                        is_closed = await self._sleep_until(until, closes)
                    else:
                        listener = listener or self._listen(client, keys["wake"])
                        is_closed = await self._wait(listener, session, until, closes)
                    if is_closed:
                        heard, listener = listener, None
                        await self._stop_waiting(heard, session, options)
                        return []
        except BaseException:
            with self._sessions.locked() as ours:
                ours.unclaimed += in_hand
            raise
        finally:
            self._sessions.put(session)
            if listener is not None:
                await self._stop_listening(listener)

    async def _claim(
        self,
        client: aio.AsyncClient,
        session: ClaimSession,
        options: TakeOptions,
        more: int,
        arm: int,
    ) -> Claim:
        """Claim items; `more` is the number of claimed jobs that are not counted as held yet."""
        with self._sessions.locked() as ours:
            busy = ours.held + more
        sent = time.monotonic()
        command = session.claim(
            self.queue.keys, options.num, options.lease_us, busy, arm, ahead_us=-options.previous_us
        )
        reply = await client.run(command)
        session.claimed(reply, sent)
        if options.previous_us:
            session.until = sent + look_again(reply, options.previous_us)
        check_stale(reply)
        return reply

    async def _wait(
        self, listener: AsyncWakeListener, session: ClaimSession, until: float, closes: int
    ) -> bool:
        """Wait for a wake-up message until then; return whether the queue was closed instead."""
        while time.monotonic() < until:
            caller = await listener.wait(until) if closes == self._closes else None
            if closes != self._closes:
                return True
            if caller is None or session.is_news(caller):
                return False
        return False

    async def _pass_on(
        self, listener: AsyncWakeListener | None, session: ClaimSession, options: TakeOptions
    ) -> None:
        """Pass a wake-up message that came too late on to another consumer."""
        if listener is not None and await self._stop_listening(listener):
            await self._claim(self._client, session, options._replace(num=0), 0, arm=0)

    async def _stop_waiting(
        self, listener: AsyncWakeListener | None, session: ClaimSession, options: TakeOptions
    ) -> None:
        """Leave after `close`, so that other consumers do not rely on this one."""
        keys = self.queue.keys
        try:
            await self._pass_on(listener, session, options)
            await self._client.run(worker_commands.worker_leave(keys, session.consumer))
            session.is_timekeeper = False
        except BideError as error:  # the server forgets it later
            log.info(
                "queue %s: could not report that this consumer has left: %s", keys.queue, error
            )

    async def _settle(self, client: aio.AsyncClient, settles: Sequence[Settle]) -> list[Verdict]:
        if not settles:
            return []
        verdicts = await client.run_many(settles_of(self.queue.keys, settles))
        return [verdict for some in verdicts for verdict in some]

    async def _give_back(self, client: aio.AsyncClient | None = None) -> bool:
        """Return items that cancelled calls have claimed, and give up their timekeeping.

        Returns:
            Whether the server answered.
        """
        client, keys = client or self._client, self.queue.keys
        unfinished = self._sessions.take_unfinished()
        try:
            with self._sessions.locked() as ours:
                unclaimed, ours.unclaimed = ours.unclaimed, []
            await self._settle(client, [release(job) for job in unclaimed])
            for session in unfinished:
                if session.pending:
                    options = TakeOptions(1, round(LEASE * 1e6), 0)
                    reply = await self._claim(client, session, options, 0, arm=0)
                    await self._settle(client, [release(job) for job in reply.jobs])
                await client.run(worker_commands.worker_leave(keys, session.consumer))
                session.is_timekeeper = False
        except BideError as error:
            log.warning("queue %s: some items return when their leases end: %s", keys.queue, error)
            return False
        finally:
            for session in unfinished:
                self._sessions.put(session)
        return True

    async def _leave(self, client: aio.AsyncClient) -> None:
        """Remove this process's sessions from the server, except those with a pending reply."""
        keys = self.queue.keys
        sessions: list[ClaimSession] = []
        try:
            if await self._give_back(client):
                await self._read_pops(client)
                sessions = self._sessions.take_all()
                names = [session.consumer for session in sessions if not session.pending]
                await client.run_many([worker_commands.worker_leave(keys, name) for name in names])
        except BideError as error:  # the server forgets them later
            log.info(
                "queue %s: could not report that this consumer has left: %s", keys.queue, error
            )
        finally:
            for session in sessions:
                self._sessions.put(session)

    async def _read_pops(self, client: aio.AsyncClient) -> None:
        """Read what pops without an answer have removed, and remove nothing else."""
        while self._sessions.unread()[1]:
            session, found = self._sessions.take("pop"), list[Any]()
            try:
                await self._pop_into(found, client, session, 0)
            finally:
                self._sessions.put(session)
                with self._sessions.locked() as ours:
                    ours.left_over += found

    async def _answer(
        self, items: Sequence[ItemCore], outcome: Outcome, when: str = "", data: bytes = b""
    ) -> list[bool]:
        """Send the answers for items; return whether each answer counts."""
        for item in items:
            if item.answer not in (None, outcome):
                raise UsageError(
                    f"Item {short_id(item.id)} was answered before "
                    f"({ANSWERS.get(item.answer, item.answer)}); an item is answered once."
                )
        new = [item for item in items if item.answer is None]
        settles = [Settle(item.id, item.token, outcome, due=when, data=data) for item in new]
        verdicts = await self._settle(self._client, settles)
        for item, verdict in zip(new, verdicts, strict=True):
            item.answer, item.counted = outcome, verdict == "ok"
            if verdict != "ok":
                log.warning(
                    "item %s: the answer (%s) came after its lease had passed to another "
                    "consumer, and was refused",
                    short_id(item.id),
                    ANSWERS.get(outcome, outcome),
                )
        return [item.counted for item in items]

    async def _end(self, items: Sequence[ItemCore], error: BaseException | None) -> None:
        """Return unanswered items to the queue, at the end of a `with` block.

        After an exception, this counts as an attempt. Otherwise the items return as they came.
        """
        left = [item for item in self._sessions.release(items) if item.answer is None]
        await self._give_up(left, error)

    async def _give_up(self, items: Sequence[ItemCore], error: BaseException | None) -> None:
        """Return items to the queue: after an exception, as failed deliveries."""
        try:
            if isinstance(error, Exception):
                await self._answer(items, "retry", "+0", encode_error(error))
            else:
                await self._answer(items, "release")
        except BideError as failed:
            log.warning(
                "queue %s: %s will return when the lease ends: %s",
                self.name,
                count(len(items), "item"),
                failed,
            )

    async def _each(self, options: TakeOptions) -> AsyncIterator[AsyncItem]:
        closes = self._closes
        while closes == self._closes:
            async with AsyncTaking(self, options, closes) as items:
                if not items:
                    return
                for item in items:
                    yield item
                await self._pass_over(items.unanswered)

    async def _pass_over(self, items: Sequence[ItemCore]) -> None:
        """Return items that `each` went past without an answer, with a delay that doubles.

        If this fails, the error is logged: the items return when their leases end.
        """
        if not items:
            return
        log.warning(
            "queue %s: %s got no answer, and will come again after a delay; call ack() for "
            "finished items",
            self.name,
            count(len(items), "item"),
        )
        why = encode_error(UsageError("each() continued without an answer for this item."))
        try:
            for item in items:
                delay_us = delay_after(item.attempt)
                await self._answer([item], "retry", f"+{delay_us}", why)
        except BideError as failed:
            log.warning("queue %s: these items return when their leases end: %s", self.name, failed)

    async def _extend(self, items: Sequence[ItemCore], lease: Duration | None) -> list[bool]:
        """Renew leases; return whether each item is still held."""
        lease_us = None if lease is None else checked_lease(lease)
        words: list[str] = []
        for i in range(0, len(items), worker_commands.MAX_SETTLES):
            some = items[i : i + worker_commands.MAX_SETTLES]
            held = [(item.id, item.token) for item in some]
            for_us = lease_us or some[0].lease_us
            command = worker_commands.extend(self.queue.keys, for_us, held)
            renewals = await self._client.run(command)
            words += renewals
        return [word in ("ok", "asked") for word in words]

    async def _see(self, ids: Sequence[str]) -> list[ItemInfo]:
        fetches = job_commands.fetch_many(self.queue.keys, list(dict.fromkeys(ids)))
        found = []
        for snapshot in (one for page in await self._client.run_many(fetches) for one in page):
            try:
                found.append(ItemInfo.read(snapshot))
            except PayloadError:
                log.warning("item %s is not JSON; see `bide jobs show`", short_id(snapshot.id))
        return [item for item in found if item is not None]
