"""What members are told, and what they say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from bide import logs
from bide.worker.figures import ByQueue


class Plan(msgspec.Struct, frozen=True):
    """What one member does; it travels over its line, because a command line can be seen by all."""

    options: dict[str, Any]
    """The arguments of `bide.Worker`."""
    burst: bool
    log: logs.Settings
    counts: bool = False
    """Whether it is to say what it has done."""


class Vitals(msgspec.Struct, frozen=True, tag="vitals"):
    """How a member is. Times are of `time.monotonic()`, which all processes share."""

    turned: float
    """When its event loop last turned."""
    polled: float
    """When it last looked for work, and was answered; 0 for never."""
    figures: ByQueue | None = None
    """What it has done since it started, where it is to say so."""


class Farewell(msgspec.Struct, frozen=True, tag="farewell"):
    """Why a member ends. One that ends without it has died: a job may choose any exit code."""

    how: Literal["ended", "replace", "unusable"]
    """It has nothing left to do, or was asked over the server to stop; it has run as many jobs as
    it was to, or was told to stop by somebody else, and is to be replaced; or its plan cannot be
    meant, and another would end so too."""


News = Vitals | Farewell


encode: Final = msgspec.json.Encoder().encode
decode_plan: Final = msgspec.json.Decoder(Plan).decode
decode_news: Final[Callable[[bytes | memoryview], News]] = msgspec.json.Decoder(News).decode
