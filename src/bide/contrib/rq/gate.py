"""The gate: where RQ's workers push delayed jobs whose dependencies are met."""

from __future__ import annotations

from typing import Final

import redis

from bide.contrib.rq.keys import HINTS, Keys
from bide.contrib.rq.scripts import run
from bide.contrib.rq_sets import DELAYED, GATE
from bide.ids import short_id
from bide.logs import Log

log = Log("bide.rq")

_AT_ONCE: Final = 100
"""Jobs per call of the script, so that no call is long."""


def open_gate(client: redis.Redis, keys: Keys) -> bool:
    """Let all jobs through that stand at the gate; the delay of each begins.

    Returns:
        Whether none stays. One does while another program uses the key of its queue's sorted set.

    Raises:
        redis.RedisError: as the client library has it; what is not through still stands there.
    """
    staying: list[bytes] = []
    read = _AT_ONCE
    while read == _AT_ONCE:
        args = [keys.jobs, DELAYED, HINTS, GATE, len(staying), _AT_ONCE]
        read, through, strays, stay = run(client, "open", [keys.gate], args)
        staying += stay
        for id in through:
            log.debug("job %s waits for its delay from now", shown(id))
        for id in strays:
            log.warning("job %s is not one that waits for its delay; dropped", shown(id))
    for key in sorted(set(staying)):
        log.warning(
            "%d due jobs are not moved: another program uses the key %s; delete that key",
            staying.count(key),
            shown(key),
        )
    return not staying


def shown(id: bytes) -> str:
    """An id, or a name, as a log can show it: another program may have written anything."""
    return short_id(id.decode("utf-8", "backslashreplace"))
