"""The lateness and the run times of jobs, by minute (`lua/include/latency.lua`), and histograms.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import accumulate
from typing import Final, Literal, NamedTuple

from bide.model.durations import from_us

FINEST: Final = 250e-6
"""The upper bound of the first bucket in seconds; each bucket has twice the bound of the one
before."""

LAST: Final = 32
"""The number of the last bucket, which has no upper bound."""

LONGEST: Final = FINEST * 2.0 ** (LAST - 1)
"""The lower bound of the last bucket in seconds: six days."""

MINUTE_US: Final = 60_000_000

_WORD: Final = re.compile(rb"([lr])(\d{1,2})=(\d{1,15})(?![^ ])")


class Histogram(NamedTuple):
    """A histogram of durations."""

    counts: Mapping[int, int]
    """Bucket -> count: bucket n has the values below `FINEST * 2**n` and not below half of that;
    the last bucket has the values from `LONGEST` on."""

    @property
    def total(self) -> int:
        """The number of values."""
        return sum(self.counts.values())

    def percentile(self, share: float) -> float | None:
        """Return the seconds that this share (0 to 1) of the values does not exceed.

        The values inside a bucket are assumed to be evenly distributed. The true value is in the
        same bucket: less than twice the result and more than half of it, or both are below
        `FINEST`. `LONGEST` stands for all larger values. Without values, the result is None.
        """
        left = share * float(self.total)
        for bucket in sorted(self.counts):
            count = self.counts[bucket]
            if count and left <= count:
                if bucket >= LAST:
                    return LONGEST
                high = FINEST * float(2**bucket)
                low = high / 2 if bucket else 0.0
                return low + (high - low) * left / (count + 1)
            left -= count
        return None

    @property
    def mean(self) -> float | None:
        """The mean in seconds, up to `LONGEST`; None without values.

        The values inside a bucket are assumed to be evenly distributed, so the error is at most a
        factor of two.
        """
        if not self.total:
            return None
        middles = {bucket: FINEST * float(2**bucket) * 0.75 for bucket in self.counts}
        middles |= {0: FINEST / 2, LAST: LONGEST}
        return sum(middles[bucket] * count for bucket, count in self.counts.items()) / self.total

    def __add__(self, other: object) -> Histogram:
        """Return the sum of both."""
        if not isinstance(other, Histogram):
            return NotImplemented
        buckets = {*self.counts, *other.counts}
        return Histogram({b: self.counts.get(b, 0) + other.counts.get(b, 0) for b in buckets})


class Minute(NamedTuple):
    """The latencies of one minute, on the server's clock."""

    at: datetime
    late: Histogram
    """The lateness of the jobs that started, in seconds."""
    ran: Histogram
    """The run times of the attempts that ended, in seconds."""

    @classmethod
    def read(cls, number: int, line: bytes | None) -> Minute:
        """Parse a stored line; unreadable parts are left out."""
        found: dict[bytes, dict[int, int]] = {b"l": {}, b"r": {}}
        for kind, bucket, count in _WORD.findall(line or b""):
            counts, index = found[kind], int(bucket)
            if index <= LAST:
                counts[index] = counts.get(index, 0) + int(count)
        return cls(from_us(number * MINUTE_US), Histogram(found[b"l"]), Histogram(found[b"r"]))


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

Labels = Mapping[str, str]


class Distribution(NamedTuple):
    """The counts of measured values between bounds."""

    bounds: Sequence[float]
    """The upper bounds of the buckets, in ascending order; the last bucket has none."""
    counts: Sequence[int]
    """The count of each bucket; one more than there are bounds."""
    total: float
    """The sum of all values."""


class Family(NamedTuple):
    """A metric with its value for each set of labels."""

    name: str
    kind: Literal["gauge", "counter", "histogram"]
    help: str
    samples: Sequence[tuple[Labels, float | Distribution]]


def expose(families: Iterable[Family]) -> str:
    """Format all metrics as text."""
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
    """Escape text, in label values also quotes; replace lone surrogates."""
    text = text.encode("utf-8", "replace").decode()
    special = r'[\\\n"]' if quoted else r"[\\\n]"
    return re.sub(special, lambda match: "\\n" if match[0] == "\n" else f"\\{match[0]}", text)
