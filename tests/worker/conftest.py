"""Fixtures of these tests, which those of the features share."""

from tests.support.fixtures import _fresh, home, queue, raw

__all__ = ["_fresh", "home", "queue", "raw"]
