"""What routes ask of the executors."""

from __future__ import annotations

from collections.abc import Generator
from typing import NamedTuple

from bide.calls import Answer, Call


class Trip(NamedTuple):
    """One round trip to one node."""

    node: str
    """Its URL, of one server."""
    calls: list[Call]
    is_question: bool = False
    """About the servers themselves, so that an answer does not mean that jobs are served."""


Delivery = Generator[list[Trip], list[Answer], Answer]
Finding = Generator[list[Trip], list[Answer], str | Exception]
Surveying = Generator[list[Trip], list[Answer], list[str] | Exception]
