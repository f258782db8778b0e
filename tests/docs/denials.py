"""What a page denies: sentences and cells that say that bide lacks a feature."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from tests.docs import lists
from tests.docs.names import OURS, Passage

FEATURES: Final[dict[str, str]] = {
    r"workflows?|flows?|chains?|joins?|branches|fan-ins?|dependenc(?:y|ies)": "bide.chain",
    r"depends_on|Dependency|parents?": "depends_on=",
    r"repeats?|repeatable(?: jobs?)?|recurring jobs?|periodic(?: jobs?)?": "queue.every",
    r"schedules?|cron(?: jobs?)?": "queue.cron",
    r"ttl|expir(?:y|es?)": "expires=",
    r"sandbox(?:ed|es)?(?: process(?:es|ors?))?|child processes": "executor=",
    r"deferred|waiting-children": "job.parents",
    r"rate limits?|limiter": "queue.configure",
    r"groups?": "group=",
    r"priorit(?:y|ies)": "priority=",
    r"deduplication|debounc\w+|throttl\w+|unique jobs?": "unique=",
    r"batch(?:es|ing)?|batching": "queue.batch",
    r"progress": "job.progress",
    r"callbacks?": "on_success=",
    r"middlewares?": "bide.Middleware",
    r"dashboards?": "bide web",
    r"metrics": "bide metrics",
    r"rq cron": "bide cron ls",
}
"""Words for features, and a name that bide has for each."""

BY_HAND: Final[dict[str, str]] = {
    r"enqueues? the (?:second|next)": "depends_on",
    r"enqueues? itself": "every",
}
"""Advice to do by hand what bide does, and what it should name."""

FALSE_FRIENDS: Final[dict[str, str]] = {
    r"enqueued_at|created_at|timestamp": r"job\.due|at=",
}
"""Names of other libraries, and names of ours that mean something else."""

_NO: Final = (
    r"(?:\bno|\bwithout|\blacks?|\bnor|n[o']t have)(?: any| its| such)?(?: [\w-]+)?? "
    r"(?:{feature})\b(?![ -](?:process|daemon|engine|server))"
)
_MISSING: Final = (
    r"(?:do|does) not exist|(?:is|are) (?:not (?:\w+ )?(?:here|there|supported|possible|available|"
    r"implemented|offered|planned)|missing)|(?:has|have) no counterparts?"
)
_NO_CODE: Final = re.compile(
    r"\b(?:there (?:is|are) no|(?:has|have|had|knows?|offers?) no|no such)(?: [\w-]+)? `([^`]+)`|"
    rf"`([^`]+)`(?:,? (?:and|or|nor) [^.;]+?)? (?:{_MISSING})",
    re.IGNORECASE,
)
_NOTHING: Final = re.compile(rf"–|(?:none|nothing|no counterpart|not yet)\b|{_MISSING}|not ")
"""How a cell begins that says that something is not there."""

_DENIES: Final = [
    (re.compile(form.replace("{feature}", feature), re.IGNORECASE), name)
    for form in (_NO, rf"\b(?:{{feature}})\b(?:,? (?:and|or) [\w ]+?)? (?:{_MISSING})")
    for feature, name in FEATURES.items()
]
_SAME_NAME: Final = lists.JOB_OPTIONS | lists.STATES | lists.EVENTS | lists.public().keys()
"""A name of another library that is also one of these is not missing."""


def denied(passage: Passage) -> Iterator[str]:
    """The names of ours that a sentence or a cell denies."""
    text = re.sub(r"=?`|\*\*", "", passage.text)
    for pattern, name in _DENIES:
        if pattern.search(text):
            yield name
    for found in _NO_CODE.finditer(passage.text):
        for name in _ours(found[1] or found[2]):
            yield name
    for advice, name in BY_HAND.items():
        if re.search(advice, text) and name not in text:
            yield name
    if passage.title in OURS:
        yield from _denied_beside(passage)


def _denied_beside(cell: Passage) -> Iterator[str]:
    """What a cell denies of what the first cell of its row names."""
    names = re.findall(r"`([^`]+)`", cell.first) or [cell.first]
    if _NOTHING.match(cell.text):
        yield from (name for name in names if name in _SAME_NAME)
        for feature, ours in FEATURES.items():
            if any(re.fullmatch(feature, name, re.IGNORECASE) for name in names):
                yield ours
    for theirs, ours in FALSE_FRIENDS.items():
        for name in names:
            if re.fullmatch(theirs, name) and re.search(ours, cell.text):
                yield f"{ours} for {name}"


def _ours(span: str) -> Iterator[str]:
    """The names in a span, if bide has them."""
    if span.startswith("bide "):
        path = tuple(span.split()[1:])
        yield from [span] if path in lists.commands() else []
    elif found := re.search(r"(\w+)(?:=\S*|\(.*\))?$", span):
        yield from [span] if found[1] in _NAMES else []


_NAMES: Final = (
    lists.public().keys()
    | lists.every_attribute()
    | lists.JOB_OPTIONS
    | lists.STATES
    | lists.EVENTS
    | lists.VARIABLES
)
