"""Telling systemd how the service is, by its protocol: sd_notify(3)."""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Final

_PATIENCE: Final = 1.0
"""Seconds to wait while systemd has more messages than it reads: the event loop waits, too."""


class Notifier:
    """Says to `$NOTIFY_SOCKET` what is said; to nobody where there is none."""

    def __init__(self, environment: MutableMapping[str, str] = os.environ) -> None:
        """Take what concerns this process out of the environment: children are not to answer."""
        self._path = environment.pop("NOTIFY_SOCKET", "")
        pid = environment.pop("WATCHDOG_PID", "")
        watchdog = environment.pop("WATCHDOG_USEC", "")
        self.every: float | None = None
        """Seconds between two signs of life that are asked for, with time to spare; or None."""
        if watchdog.isdigit() and int(watchdog) > 0 and pid in ("", str(os.getpid())):
            self.every = int(watchdog) / 2e6

    def say(self, *words: str) -> None:
        """Send assignments such as `READY=1`; drops them where systemd does not take them."""
        if not self._path:
            return
        address = f"\0{self._path[1:]}" if self._path.startswith("@") else self._path
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.settimeout(_PATIENCE)
            line.sendto("\n".join(words).encode(), address)
