"""What of a payload is not for the eyes of those who look: replaced before it is shown."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final

from bide.payload.signature import Signature
from bide.task import signature_of

Mask = Callable[[str, str, Any], Any]
"""From a task's name, what it is (`args`, `kwargs`, `meta`, `result`, `data`) and the value: what
is shown in its place, as JSON can hold it."""

HIDDEN: Final = "•••"

_SECRET: Final = re.compile(
    "passw|passphrase|pwd|secret|token|authorization|bearer|credential|cookie|session"
    "|(api|access|private|signing|encryption)key|cvv|cvc|cardn(umber|o)"
)
_SHORT: Final = re.compile(r"(?:^|[\W_])(?:pass|auth|jwt|otp)$", re.IGNORECASE)
"""What is a secret's name only where it stands by itself, at the end: `db_pass`, not `compass`."""
_BETWEEN: Final = re.compile(r"[\W_]+")
_DEEPEST: Final = 50
_HOLDERS: Final = (ModuleType, type)
"""What has functions of its own."""


def mask_secrets(task: str, kind: str, value: Any) -> Any:
    """What holds unless told otherwise: values whose name sounds like a secret's are hidden.

    Arguments by position have the names of the task's parameters, where this process has its
    function already; nothing is imported for it.
    """
    if kind == "args" and isinstance(value, list | tuple):
        takes = _signature(task)
        if takes is not None:
            return [_under(takes.position(i), each, _DEEPEST) for i, each in enumerate(value)]
    return _masked(value, _DEEPEST)


def _under(name: str, value: Any, depth: int) -> Any:
    plain = _BETWEEN.sub("", name).lower()  # `X-Api-Key`, `api_key` and `apiKey` are alike
    return HIDDEN if _SECRET.search(plain) or _SHORT.search(name) else _masked(value, depth)


def _masked(value: Any, depth: int) -> Any:
    if depth == 0:
        return HIDDEN
    if isinstance(value, dict):
        return {key: _under(str(key), each, depth - 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_masked(each, depth - 1) for each in value]
    return value


def _signature(task: str) -> Signature | None:
    """What a task takes, as far as this process knows.

    Whatever a payload names, nothing is imported, and no code of a module runs.
    """
    module, _, path = task.partition(":")
    holder: Any = None
    found: Any = sys.modules.get(module)
    for name in path.split("."):
        holder, found = found, vars(found).get(name) if isinstance(found, _HOLDERS) else None
    if isinstance(found, staticmethod | classmethod):
        found = found.__get__(None, holder)
    is_known = isinstance(found, FunctionType | MethodType)
    return signature_of(task, task) or (signature_of(found, task) if is_known else None)
