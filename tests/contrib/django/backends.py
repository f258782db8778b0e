"""A backend of one's own, made of bide's."""

from __future__ import annotations

from bide.contrib.django import Backend


class Own(Backend):
    """What bide's is, and nothing besides."""
