"""The gate: where RQ's workers push delayed jobs whose dependencies are met."""

from __future__ import annotations

import logging
from typing import Final

import redis
from rq.utils import as_text

from bide.contrib.rq.keys import DEFERRED, DELAYED, HINTS, Keys
from bide.contrib.rq.scripts import run

log = logging.getLogger("bide.rq")

_AT_ONCE: Final = 100
"""Jobs per call of the script, so that no call is long."""


def open_gate(client: redis.Redis, keys: Keys) -> None:
    """Let all jobs through that stand at the gate; the delay of each begins.

    Raises:
        redis.RedisError: as the client library has it; what is not through still stands there.
    """
    read = _AT_ONCE
    while read == _AT_ONCE:
        args = [keys.jobs, DELAYED, HINTS, DEFERRED, _AT_ONCE]
        read, through, strays = run(client, "open", [keys.gate], args)
        for id in through:
            log.debug("job %s waits for its delay from now", as_text(id))
        for id in strays:
            log.warning("job %s is not one that waits for its delay; dropped", as_text(id))
