"""A wrong clock: found on PYTHONPATH, it shifts what a process believes the time to be.

Python imports a module of this name before the program begins, so nobody has read the true clock
before. `time.clock_gettime` stays right, for the ledger.
"""

import datetime
import os
import time

_SHIFT_NS = int(float(os.environ["BIDE_TEST_SKEW"]) * 1e9)
_time_ns = time.time_ns


class _Shifted(datetime.datetime):
    @classmethod
    def now(cls, tz: datetime.tzinfo | None = None) -> "_Shifted":
        return cls.fromtimestamp(time.time(), tz)


def _shifted_ns() -> int:
    return _time_ns() + _SHIFT_NS


time.time_ns = _shifted_ns
time.time = lambda: _shifted_ns() / 1e9
datetime.datetime = _Shifted  # type: ignore[misc]
