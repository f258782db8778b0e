"""Ending although jobs have left threads behind."""

from __future__ import annotations

import logging
import os
import threading

from bide.logs import Log

log = Log("bide")


def leave_threads_behind(code: int = 0) -> None:
    """End the process if threads still run that jobs have started, and Python would wait for."""
    main = threading.main_thread()
    left = [t.name for t in threading.enumerate() if t is not main and not t.daemon]
    if left:
        log.warning("ends though threads still run: %s", ", ".join(left))
        logging.shutdown()
        os._exit(code)
