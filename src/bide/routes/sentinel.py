"""A master that Sentinels watch: it is asked for when it is not known, or is doubted.

A Sentinel may be behind the times, or cut off together with an old master. So each question goes
to another one first, and each connection asks the node whether it is a master (`must_be_master`).
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple

from redis import exceptions as lib

from bide.calls import Answer, Call, Route
from bide.errors import UsageError
from bide.routes.trip import Delivery, Finding, Surveying, Trip
from bide.servers import Servers

_DOUBTS: Final = (
    lib.ReadOnlyError,
    lib.MasterDownError,
    lib.ConnectionError,
    lib.TimeoutError,  # all that is heard of a master that hangs; no `ConnectionError`
    OSError,
)
"""What comes of calls to one that may be the master no more."""


class _Told(NamedTuple):
    master: str | Exception
    """Its URL, or why it is not known."""
    by_one: bool
    """Whether any Sentinel answered."""


class Sentinel:
    """Who is the master, as far as is known."""

    only: str | None = None

    def __init__(self, servers: Servers) -> None:
        self._servers = servers
        self._sentinels = [*servers.named]
        random.shuffle(self._sentinels)
        self._master: str | None = None

    def deliver(self, calls: Sequence[Call], routes: Sequence[Route]) -> Delivery:
        """Send all to the master."""
        master = self._master
        if master is None:
            told = yield from self._ask()
            if isinstance(told.master, Exception):
                return [told.master] * len(calls) if told.by_one else told.master
            master = told.master
        (answer,) = yield [Trip(master, [*calls])]
        if isinstance(answer, Exception):
            # A Sentinel did answer, so this is no wrong URL: it is for a repeat to cure.
            answer = [answer] * len(calls)
        if any(isinstance(reply, _DOUBTS) for reply in answer):
            self.doubt()
        return answer

    def locate(self, key: str) -> Finding:
        """The master, whatever the key."""
        if self._master is None:
            return (yield from self._ask()).master
        return self._master

    def masters(self) -> Surveying:
        """The one."""
        found = yield from self.locate("")
        return found if isinstance(found, Exception) else [found]

    def doubt(self) -> None:
        """Ask again who is the master."""
        self._master = None

    def must_be_master(self, node: str) -> bool:
        """Whether it is one that holds data."""
        return node not in self._servers.named

    def _ask(self) -> Generator[list[Trip], list[Answer], _Told]:
        name, by_one = self._servers.master, False
        problem: Exception = lib.ConnectionError("no Sentinel was asked")
        asked, self._sentinels = self._sentinels, self._sentinels[1:] + self._sentinels[:1]
        question: Call = ("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name)
        for some in filter(None, (asked[:1], asked[1:])):  # together: many may hang
            answers = yield [Trip(node, [question], is_question=True) for node in some]
            for node, answer in zip(some, answers, strict=True):
                reply: Any = answer if isinstance(answer, Exception) else answer[0]
                if isinstance(reply, Exception):
                    problem = reply
                    continue
                by_one = True
                if reply is not None:
                    host, port = reply
                    self._master = master = self._servers.beside(node, host.decode(), int(port))
                    return _Told(master, by_one)
                problem = UsageError(
                    f"The Sentinels know no master {name!r}; write "
                    "redis+sentinel://HOST:PORT/NAME/DB with the name that their configuration "
                    "gives it."
                )
        return _Told(problem, by_one)
