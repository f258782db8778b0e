"""How long each call of a script took, by the server's own account: SLOWLOG, from 0 µs on.

It is the time within the script, to the microsecond below, whatever the client does meanwhile. On
a busy machine it includes what the server's process waited for a processor.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import redis

from bide.embedded import Server
from bide.protocol.scripts import load, names

MOST = 100_000
"""Calls that are kept between two looks."""


class Stopwatch:
    """Reads the times of scripts, bide's and others that are made known to it."""

    def __init__(self, server: Server) -> None:
        self.client: Any = redis.Redis.from_url(server.url)
        self.client.config_set("slowlog-log-slower-than", 0)
        self.client.config_set("slowlog-max-len", MOST)
        self._names = {load(name).sha: name for name in names()}

    def know(self, name: str, text: str) -> Any:
        """Make a script known by a name; what calls it."""
        script = self.client.register_script(text)
        self.client.script_load(text)
        self._names[script.sha] = name
        return script

    def read(self) -> dict[str, list[int]]:
        """The microseconds of each call since the last time, by the script's name."""
        pipe = self.client.pipeline(transaction=True)
        pipe.slowlog_get(MOST)
        pipe.slowlog_reset()
        found: dict[str, list[int]] = defaultdict(list)
        for entry in pipe.execute()[0]:
            words = entry["command"].split(b" ", 2)
            if words[0].upper() == b"EVALSHA":
                found[self._names.get(words[1].decode(), "?")].append(entry["duration"])
        return found

    def close(self) -> None:
        """Close the connection."""
        self.client.close()
