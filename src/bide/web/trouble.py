"""What went wrong, as whoever asked is told: a sentence, and a status."""

from __future__ import annotations

import logging

from bide.cli.site import NotFound
from bide.errors import (
    BideError,
    JobNotFound,
    NotUnique,
    ScheduleNotFound,
    ServerUnavailable,
    UsageError,
)
from bide.web.access import Refused

log = logging.getLogger("bide.web")


def status_and_sentence(error: Exception) -> tuple[int, str]:
    """For an error that met a request; one that is not ours is logged, and not told."""
    if isinstance(error, Refused):
        return error.status, str(error)
    if isinstance(error, NotFound | JobNotFound | ScheduleNotFound):
        return 404, str(error)
    if isinstance(error, NotUnique):
        return 409, str(error)
    if isinstance(error, UsageError):
        return 400, str(error)
    if isinstance(error, ServerUnavailable):
        return 503, str(error)
    if isinstance(error, BideError):
        return 502, str(error)
    log.error("a request failed", exc_info=error)
    return 500, "Something is wrong with the page itself; its log has the error."


def extra_headers(status: int) -> dict[str, str]:
    """What goes with a status."""
    return {"www-authenticate": 'Basic realm="bide", charset="UTF-8"'} if status == 401 else {}
