"""What tests of events ask again and again."""

from __future__ import annotations

from bide import Event, Queue


def kinds(events: list[Event]) -> list[str]:
    """The kind of each."""
    return [event.kind for event in events]


def listens(queue: Queue) -> bool:
    """Whether the server knows of anyone who listens to a queue."""
    return bool(queue._client._redis.exists(queue.keys["listeners"]))
