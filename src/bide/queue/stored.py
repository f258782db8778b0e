"""The options that travel with a job, as its body has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bide.clock import to_us
from bide.errors import UsageError
from bide.naming import task_name
from bide.options import TERMS, Options, check_names
from bide.policy import check_on_crash, check_timeout
from bide.retry import as_retry

APART: Final = frozenset(("delay", "at", "priority", "job_id", "durability"))
"""The options that are sent beside the body, and are no terms."""
_SENT_APART: Final = TERMS | APART

LONGEST_DESCRIPTION: Final = 500
"""Characters."""


def stored(options: Options) -> dict[str, Any]:
    """The options that travel with a job: only those that are given, as the body has them.

    Raises:
        UsageError: one cannot be meant.
    """
    found: dict[str, Any] = {}
    if _SENT_APART.issuperset(options):
        return found
    check_names(options)
    for name, value in options.items():
        if value is None or name in _SENT_APART:
            continue
        if name == "timeout":
            found["timeout"] = check_timeout(value)
        elif name == "retry":
            found["retry"] = as_retry(value)  # type: ignore[arg-type]
        elif name == "retention":
            found["keep"] = to_us(value, "retention") / 1e6  # type: ignore[arg-type]
        elif name == "on_crash":
            found["on_crash"] = check_on_crash(value)
        elif name == "description":
            found["description"] = _checked_description(value)
        elif name == "meta":
            found["meta"] = _checked_meta(value)
        elif name in ("on_success", "on_failure"):
            found[name] = task_name(value)  # type: ignore[arg-type]
    return found


def _checked_description(text: Any) -> str:
    if isinstance(text, str) and len(text) <= LONGEST_DESCRIPTION and is_unicode(text):
        return text
    shown = f"{text[:30]!r}… ({len(text)} characters)" if isinstance(text, str) else repr(text)
    raise UsageError(
        f"description must be text of at most {LONGEST_DESCRIPTION} characters, not {shown}; "
        "longer notes go into meta."
    )


def _checked_meta(meta: Any) -> dict[str, Any]:
    if not isinstance(meta, Mapping) or not all(isinstance(key, str) for key in meta):
        raise UsageError(f"meta must be a dict with text as keys, not {meta!r}.")
    return dict(meta)


def is_unicode(text: str) -> bool:
    """Whether it can be sent, as text or as the bytes that it was read from."""
    try:
        text.encode("utf-8", "surrogateescape")  # as a listing shows ids that are no text
    except UnicodeEncodeError:
        return False
    return True
