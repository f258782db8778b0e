"""The settings of a group: from what is said to the call that says it."""

from __future__ import annotations

from bide.command import Command
from bide.errors import UsageError
from bide.keys import Keys
from bide.limits import stored_rate
from bide.ops import groups
from bide.options import GroupSettings, check_names
from bide.terms import check_concurrency


def settings_call(keys: Keys, name: str, settings: GroupSettings) -> Command[None]:
    """The call that changes these settings and no others.

    Raises:
        UsageError: one cannot be meant, or none is given.
    """
    check_names(settings, GroupSettings)
    if "burst" in settings and "rate" not in settings:
        raise UsageError("burst= says how many of a rate come at once; give it along with rate=.")
    if not settings:
        raise UsageError("Say what to configure: concurrency=, rate= or burst=.")
    count = None
    if "concurrency" in settings:
        wanted = settings["concurrency"]
        count = groups.UNSET if wanted is None else check_concurrency(wanted)
    rate = stored_rate(settings["rate"], settings.get("burst")) if "rate" in settings else "-"
    return groups.configure(keys, name, concurrency=count, rate=rate)
