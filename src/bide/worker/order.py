"""Which of several queues free slots go to; decided here, without I/O.

A queue is **ready** while it may have due jobs: nothing has shown yet that it has none.

- Strict: all slots go to the first ready queue, in the order given.
- By weight: each queue has a virtual time, the jobs taken from it over its weight. A slot goes to
  the ready queue whose time is earliest (stride scheduling: Waldspurger and Weihl, 1995). A queue
  that becomes ready begins where those are that are ready already, so what it did not use while it
  was empty is not made up for, and what it used alone is not held against it.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol

from bide.errors import UsageError

OrderChoice = Literal["strict", "fair"] | Mapping[str, int]
"""What a worker may be asked for: a word, or the weight of each of its queues."""

HEAVIEST: Final = 1_000_000

_HINT: Final = "'strict', 'fair', or a weight for each queue such as {'high': 6, 'low': 1}"


class Order(Protocol):
    """Shares slots out among queues, which are known by their places in the list of all."""

    def share(self, ready: Sequence[bool], slots: int) -> list[int]:
        """How many of the free slots each queue is to fill; 0 for one that is not ready."""
        ...

    def took(self, queue: int, jobs: int) -> None:
        """So many jobs have been taken from a queue."""


class Strict:
    """A queue gets slots only while all before it have nothing that is due."""

    def share(self, ready: Sequence[bool], slots: int) -> list[int]:
        """All of them for the first that is ready."""
        shares = [0] * len(ready)
        if any(ready):
            shares[ready.index(True)] = slots
        return shares

    def took(self, queue: int, jobs: int) -> None:
        """Changes nothing."""


class Weighted:
    """Of the jobs taken, each queue has its share while it has work."""

    def __init__(self, weights: Sequence[int]) -> None:
        self._weights = weights
        self._times = [0.0] * len(weights)
        self._were_ready = [False] * len(weights)

    def share(self, ready: Sequence[bool], slots: int) -> list[int]:
        """One by one to the ready queue whose virtual time is earliest."""
        self._admit(ready)
        shares = [0] * len(ready)
        heap = [(self._times[i], i) for i, is_ready in enumerate(ready) if is_ready]
        if len(heap) == 1:
            shares[heap[0][1]] = slots
            return shares
        heapq.heapify(heap)
        for _ in range(slots if heap else 0):
            at, i = heap[0]
            shares[i] += 1
            heapq.heapreplace(heap, (at + 1 / self._weights[i], i))
        return shares

    def took(self, queue: int, jobs: int) -> None:
        """Move the queue's virtual time on."""
        self._times[queue] += jobs / self._weights[queue]

    def _admit(self, ready: Sequence[bool]) -> None:
        """Let those that have become ready begin where those are that have been so all along."""
        both = [
            self._times[i] for i, is_ready in enumerate(ready) if is_ready and self._were_ready[i]
        ]
        now = min(both, default=max(self._times))
        for i, is_ready in enumerate(ready):
            if is_ready and not self._were_ready[i]:
                self._times[i] = max(self._times[i], now)
        self._were_ready = list(ready)


def make_order(choice: OrderChoice, queues: Sequence[str]) -> Order:
    """The order that is asked for, of queues in the order in which they were given.

    Raises:
        UsageError: it cannot be meant; the message says how to write it.
    """
    if isinstance(choice, Mapping):
        return Weighted(_weights(choice, queues))
    if choice == "strict":
        return Strict()
    if choice == "fair":
        return Weighted([1] * len(queues))
    raise UsageError(f"order must be {_HINT}, not {choice!r}.")


def read_order(text: str) -> OrderChoice:
    """An order as it is typed: `strict`, `fair`, or weights such as `high=6,low=1`.

    Raises:
        UsageError: it is none of these.
    """
    if text == "strict":
        return "strict"
    if text == "fair":
        return "fair"
    weights: dict[str, int] = {}
    for part in text.split(","):
        queue, equals, weight = part.strip().rpartition("=")
        if not equals or not queue or not weight.strip().lstrip("+-").isdecimal():
            raise UsageError(
                f"order {text!r} cannot be meant; write strict, fair, or a weight for each queue "
                "such as high=6,low=1."
            )
        if queue in weights:
            raise UsageError(f"order {text!r} gives {queue!r} two weights; give it one.")
        weights[queue] = int(weight)
    return weights


def _weights(given: Mapping[Any, Any], queues: Sequence[str]) -> list[int]:
    for queue, weight in given.items():
        if queue not in queues:
            raise UsageError(
                f"order gives a weight to {queue!r}, which is none of the worker's queues "
                f"({', '.join(queues)}); add it to them, or take its weight out."
            )
        whole = isinstance(weight, int) and not isinstance(weight, bool)
        if not whole or not 1 <= weight <= HEAVIEST:
            raise UsageError(
                f"The weight of {queue!r} must be a whole number from 1 to {HEAVIEST:,}, not "
                f"{weight!r}; to serve it only when the others are empty, put it last in a worker "
                "whose order is 'strict'."
            )
    missing = [queue for queue in queues if queue not in given]
    if missing:
        raise UsageError(
            f"order gives no weight to {', '.join(map(repr, missing))}; give each of the worker's "
            "queues one."
        )
    return [given[queue] for queue in queues]
