"""The settings of a queue that anyone may change: from what is said to the calls that say it."""

from __future__ import annotations

from typing import Any

from bide.command import Command
from bide.errors import UsageError
from bide.keys import Keys
from bide.limits import KEEP, stored_active, stored_rate
from bide.ops import manage
from bide.options import QueueSettings, check_names


def settings_calls(keys: Keys, settings: QueueSettings) -> list[Command[Any]]:
    """The calls that change these settings and no others.

    Raises:
        UsageError: one cannot be meant, or none is given.
    """
    check_names(settings, QueueSettings)
    calls: list[Command[Any]] = []
    if "retention" in settings:
        calls.append(manage.configure(keys, settings["retention"]))
    if "burst" in settings and "rate" not in settings:
        raise UsageError("burst= says how many of a rate come at once; give it along with rate=.")
    if "rate" in settings or "max_active" in settings:
        rate = max_active = KEEP
        if "rate" in settings:
            rate = stored_rate(settings["rate"], settings.get("burst"))
        if "max_active" in settings:
            max_active = stored_active(settings["max_active"])
        calls.append(manage.limit(keys, rate, max_active))
    if not calls:
        raise UsageError("Say what to configure: retention=, rate=, burst= or max_active=.")
    return calls
