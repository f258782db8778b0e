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
    r"lifo": "lifo=",
    r"pauses? of (?:one|a) worker": "bide workers pause",
}
"""Words for features, and a name that bide has for each."""

COMMON: Final[dict[str, str]] = {
    r"events?": "queue.events",
    r"retry|retries": "retry=",
    r"results?": "job.result",
    r"retention": "retention=",
    r"pauses?": "queue.pause",
    r"cancel(?:lation|lations)?": "job.cancel",
    r"sign(?:ing|atures?|ed jobs?)": "$BIDE_SIGNING_KEYS",
    r"durability": "durability=",
    r"Django": "bide.contrib.django.Backend",
    r"testing|test (?:bed|helpers?|mode)": "bide.testing.eager",
    r"command line|CLI": "bide info",
}
"""The same, where the words are common: no sentence denies the feature that says `no events` of
something else than bide."""

ACTIONS: Final[dict[str, str]] = {
    r"expir(?:e|ed|ing)": "expires=",
    r"schedul(?:ed|ing)": "queue.cron",
    r"repeat(?:ed|ing)|recur(?:ring)?": "queue.every",
    r"prioriti[sz]e[ds]?": "priority=",
    r"deduplicate[ds]?|debounce[ds]?|throttle[ds]?": "unique=",
    r"batched": "queue.batch",
    r"retr(?:y|ied|ying)": "retry=",
    r"pause[ds]?|pausing": "queue.pause",
    r"cancel(?:s|led|ling)?": "job.cancel",
    r"sign(?:s|ed)?": "$BIDE_SIGNING_KEYS",
    r"chain(?:ed)?": "bide.chain",
    r"group(?:ed)?": "group=",
    r"limit(?:ed)? (?:the|its|their) rates?": "queue.configure",
}
"""Words for what a feature does."""

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
    r"(?:\bno|\bwithout|\blacks?|\bnor|n[o't]t have)(?: any| its| such)?(?: [\w-]+)?? "
    r"{feature}"
)
_NOT_A: Final = "(?![ -](?:process|daemon|engine|server))"
"""What a feature of bide does without."""
_ABSENT: Final = (
    r"not (?:\w+ )?(?:here|there|supported|possible|available|implemented|kept|offered|planned)"
)
_MISSING: Final = (
    rf"(?:do|does) not exist|(?:is|are) (?:{_ABSENT}|missing|impossible|unsupported|unavailable)|"
    r"(?:has|have) no counterparts?"
)
_A_FEW: Final = r"(?: [\w'-]+){0,4}?"
"""Words between a denial and the feature."""
_NOT: Final = r"(?:(?:do|does|did|will|would) not|(?:do|does|did|wo|would)n't)"
_FORMS: Final = (
    # bide has no events
    r"\b(?:bide|there) (?:(?:has|have|is|are|offers?|provides?|knows?|keeps?|comes with) "
    rf"(?:no|neither)|lacks?|does without){_A_FEW} {{feature}}",
    # it does not support events
    rf"\b{_NOT} (?:support|offer|have|provide|know|include|come with|implement|contain|keep)"
    rf"{_A_FEW} {{feature}}",
    # there is no support for events
    rf"\bno (?:support|integration|option|setting|command|interface|tools?)"
    rf"(?: \w+)? (?:for|with|of|to){_A_FEW} {{feature}}",
    rf"\bnothing (?:of|about|like|for){_A_FEW} {{feature}}",
    # **No events** with ...
    r"^(?:[-*] )?No (?:[\w-]+ )??{feature}",
)
_ARE_ABSENT: Final = (
    # events of a queue are not supported
    rf"{{feature}}(?:(?:,? (?:and|or) [\w ]+?)? (?:{_MISSING})|[^.;:,]{{0,40}}? (?:is|are) "
    rf"(?:{_ABSENT}|impossible)\b)"
)
_CANNOT: Final = (
    r"\b(?:cannot|can't|can not|(?:is|are) unable to|(?:not possible|impossible)(?: for \w+)? to)"
    rf"{_A_FEW} {{feature}}",
    r"\bno way (?:for \w+ )?to(?: [\w'-]+){0,8}? {feature}",
    rf"\b(?:bide|it) (?:never|{_NOT})(?: \w+)?? {{feature}}",
)
_NO_CODE: Final = re.compile(
    r"\b(?:there (?:is|are) no|(?:has|have|had|knows?|offers?) no|no such)(?: [\w-]+)? `([^`]+)`|"
    rf"`([^`]+)`(?:,? (?:and|or|nor) [^.;]+?)? (?:{_MISSING})|"
    rf"\b(?:{_NOT} (?:support|offer|have|provide|know)|nothing like) `([^`]+)`",
    re.IGNORECASE,
)
_NOTHING: Final = re.compile(
    rf"$|[-–—](?!\w)|(?:no|none|not|n/a|unsupported|missing)\b|nothing\b(?! is)|{_MISSING}",
    re.IGNORECASE,
)
"""How a cell begins that says that something is not there."""


def _forms(feature: str) -> Iterator[str]:
    """How a sentence denies a feature."""
    if feature in FEATURES:
        yield _NO
    if feature not in ACTIONS:
        yield from _FORMS
    yield _ARE_ABSENT
    yield from _CANNOT


_DENIES: Final = [
    (re.compile(form.replace("{feature}", rf"\b(?:{feature})\b{_NOT_A}"), re.IGNORECASE), name)
    for feature, name in (FEATURES | COMMON | ACTIONS).items()
    for form in _forms(feature)
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
        for name in _ours(found[1] or found[2] or found[3]):
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
        for feature, ours in (FEATURES | COMMON).items():
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
