"""The names under which a process takes items, and what it has in hand.

The server remembers what each consumer last took, so that a call whose reply was lost can be sent
again. It remembers one call of each: so calls that are under way at once, in threads or tasks, need
a name each. Such a name with its count of calls is a seat; whoever takes something sits down on a
free one.

All of this is one process's: a child that was forked begins with nothing, or both would hand out
the same.
"""

from __future__ import annotations

import os
import secrets
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Literal

from bide.command import Command
from bide.delay_queue.items import ItemCore
from bide.job import Claimed
from bide.keys import Keys
from bide.ops import consume
from bide.ops.consume import Claim, Popped

Kind = Literal["claim", "pop"]


class Seat:
    """One name, and its latest call."""

    def __init__(self) -> None:
        self.pid: Final = os.getpid()
        self.name: Final = f"{socket.gethostname()}.{self.pid}.{secrets.token_hex(3)}"
        self.owes: Kind | None = None
        """A call was sent whose reply has not been seen: it may have taken items."""
        self.keeps_time = False
        """The server counts on this one to come back."""
        self._seq = 1
        self._echoed = False

    def claim(self, keys: Keys, count: int, lease_us: int, busy: int, arm: int) -> Command[Claim]:
        """The next claim; the same again until `answered`."""
        self.owes, self.keeps_time = "claim", arm > 0
        return consume.claim(keys, self.name, self._seq, count, lease_us, busy, arm)

    def pop(self, keys: Keys, count: int, previous_us: int) -> Command[Popped]:
        """The next pop; the same again until `answered`."""
        self.owes = "pop"
        return consume.pop(keys, self.name, self._seq, count, previous_us)

    def answered(self) -> None:
        """The reply to the latest call has come."""
        self._seq += 1
        self.owes = None

    def is_news(self, caller: str) -> bool:
        """Whether a wake hint is a reason to look.

        One that this seat pushed itself, to call another to keep the time with it, may come back to
        it: it calls again, and if it hears itself once more, nobody else is there.
        """
        if caller == self.name and self._echoed:
            self._echoed = False
            return False
        self._echoed = caller == self.name
        return True


class Seats:
    """The seats of one delay queue in one process; shared by its threads and event loops."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._free: list[Seat] = []
        self._left_over: deque[Any] = deque()
        self._orphans: list[Claimed] = []
        self._held = 0

    def _check_process(self) -> None:
        """A process that was forked has nothing of its parent's, and owes it nothing."""
        if self._pid != os.getpid():
            self._begin()

    @property
    def held(self) -> int:
        """How many items the consumers of this process hold."""
        with self._lock:
            self._check_process()
            return self._held

    def hold(self, items: Sequence[ItemCore]) -> None:
        """Items were handed out under a lease."""
        with self._lock:
            self._check_process()
            self._held += len(items)

    def let_go(self, items: Sequence[ItemCore]) -> list[ItemCore]:
        """They are held no more; those of them that this process held, and not its parent."""
        with self._lock:
            self._check_process()
            mine = [item for item in items if item.pid == self._pid]
            self._held -= len(mine)
            return mine

    def take_left_over(self, count: int) -> list[Any]:
        """Some of the data that were popped and not handed out."""
        with self._lock:
            self._check_process()
            left = self._left_over
            return [left.popleft() for _ in range(min(count, len(left)))]

    def leave_over(self, data: Sequence[Any]) -> None:
        """Keep data that were popped for who comes next."""
        with self._lock:
            self._check_process()
            self._left_over.extend(data)

    @property
    def has_orphans(self) -> bool:
        """Whether something is to be given back."""
        with self._lock:
            self._check_process()
            return bool(self._orphans)

    def take_orphans(self) -> list[Claimed]:
        """What was claimed by calls that did not live to hand it out."""
        with self._lock:
            self._check_process()
            taken, self._orphans = self._orphans, []
            return taken

    def orphan(self, jobs: Sequence[Claimed]) -> None:
        """Keep what was claimed until it can be given back."""
        with self._lock:
            self._check_process()
            self._orphans += jobs

    def take(self, kind: Kind) -> Seat:
        """A free seat for such a call: one that still owes it an answer, else one that owes none.

        Until it is put back, nobody else has it.
        """
        with self._lock:
            self._check_process()
            for owes in (kind, None):
                for i, seat in enumerate(self._free):
                    if seat.owes == owes:
                        return self._free.pop(i)
        return Seat()

    def put(self, seat: Seat) -> None:
        """Leave a seat to others."""
        with self._lock:
            self._check_process()
            if seat.pid == self._pid:
                self._free.append(seat)

    def take_all(self) -> list[Seat]:
        """All free seats."""
        with self._lock:
            self._check_process()
            taken, self._free = self._free, []
        return taken

    def take_unfinished(self) -> list[Seat]:
        """Those which may hold items that nobody knows of, or on which others count in vain."""
        taken = self.take_all()
        for seat in taken:
            if seat.owes != "claim" and not seat.keeps_time:
                self.put(seat)
        return [seat for seat in taken if seat.owes == "claim" or seat.keeps_time]
