"""Figures as Prometheus reads them: the text format, version 0.0.4.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Final, Literal, NamedTuple

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]


class Distribution(NamedTuple):
    """How often what was measured fell between bounds."""

    bounds: Sequence[float]
    """The upper end of each bucket but the last, which has none; rising."""
    counts: Sequence[int]
    """Of each bucket, one more than there are bounds."""
    total: float
    """The sum of all that was measured."""


class Family(NamedTuple):
    """A metric, and its value for each set of labels."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    samples: Sequence[tuple[Labels, float | Distribution]]


def expose(families: Iterable[Family]) -> str:
    """All of them, as text."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# HELP {family.name} {_escaped(family.help)}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for labels, value in family.samples:
            if isinstance(value, Distribution):
                lines += _buckets(family.name, labels, value)
            else:
                lines.append(f"{family.name}{_labels(labels)} {_number(value)}")
    return "".join(f"{line}\n" for line in lines)


def _buckets(name: str, labels: Labels, value: Distribution) -> Iterable[str]:
    counts = list(accumulate(value.counts))
    for bound, count in zip([*map(_number, value.bounds), "+Inf"], counts, strict=True):
        yield f"{name}_bucket{_labels({**labels, 'le': bound})} {count}"
    yield f"{name}_sum{_labels(labels)} {_number(value.total)}"
    yield f"{name}_count{_labels(labels)} {counts[-1]}"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    inside = ",".join(f'{name}="{_escaped(value, quoted=True)}"' for name, value in labels.items())
    return f"{{{inside}}}"


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.10g}"


def _escaped(text: str, quoted: bool = False) -> str:
    """In a label's value quotes are escaped too; what is no character is replaced."""
    text = text.encode("utf-8", "replace").decode()
    special = r'[\\\n"]' if quoted else r"[\\\n]"
    return re.sub(special, lambda match: "\\n" if match[0] == "\n" else f"\\{match[0]}", text)
