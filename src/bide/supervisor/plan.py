"""What members are told, and what they say."""

from __future__ import annotations

from typing import Any, Final

import msgspec


class Plan(msgspec.Struct, frozen=True):
    """What one member does; it travels over its line, because a command line can be seen by all."""

    options: dict[str, Any]
    """The arguments of `bide.Worker`."""
    burst: bool
    path: list[str]
    """Where modules are found."""
    log: tuple[str, int]
    """Format and level."""


class Vitals(msgspec.Struct, frozen=True):
    """How a member is. Times are of `time.monotonic()`, which all processes share."""

    turned: float
    """When its event loop last turned."""
    answered: float
    """When the server last answered it; 0 for never."""


encode: Final = msgspec.json.Encoder().encode
decode_plan: Final = msgspec.json.Decoder(Plan).decode
decode_vitals: Final = msgspec.json.Decoder(Vitals).decode

ENDED: Final = 0
"""How a member ends that has nothing left to do, or was told to stop."""

RETIRED: Final = 75
"""How a member ends that has run as many jobs as it was to, and is to be replaced."""

UNUSABLE: Final = 2
"""How a member ends whose plan cannot be meant: another would end so too."""
