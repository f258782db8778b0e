"""What of a payload is not for the eyes of those who look: replaced before it is shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

Mask = Callable[[str, str, Any], Any]
"""From a task's name, what it is (`args`, `kwargs`, `meta`, `result`, `data`) and the value: what
is shown in its place, as JSON can hold it."""

HIDDEN: Final = "•••"

_SECRET: Final = re.compile(
    r"passw|passphrase|secret|token|api_?key|private_?key|authorization|credential|cvv|card_?number",
    re.IGNORECASE,
)
_DEEPEST: Final = 50


def mask_secrets(task: str, kind: str, value: Any) -> Any:
    """What holds unless told otherwise: values whose name sounds like a secret's are hidden."""
    return _masked(value, _DEEPEST)


def _masked(value: Any, depth: int) -> Any:
    if depth == 0:
        return HIDDEN
    if isinstance(value, dict):
        return {
            key: HIDDEN if _SECRET.search(str(key)) else _masked(each, depth - 1)
            for key, each in value.items()
        }
    if isinstance(value, list | tuple):
        return [_masked(each, depth - 1) for each in value]
    return value
