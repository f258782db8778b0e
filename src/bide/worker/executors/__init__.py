"""Checks the options that choose an executor, and creates it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Final, Literal, NamedTuple, get_args

from bide import logs
from bide.client import config
from bide.errors import UsageError
from bide.model.durations import to_bytes
from bide.model.ids import MAIN
from bide.model.payload.signing import Keyring
from bide.tasks.task import TaskRegistry, registering_modules
from bide.worker.executors.base import Executor
from bide.worker.executors.local import LocalExecutor
from bide.worker.executors.processes import ProcessExecutor
from bide.worker.processes.ipc import Setting
from bide.worker.processes.pool import ProcessPool

ExecutorKind = Literal["auto", "async", "thread", "process", "fork"]
EXECUTORS: Final[tuple[str, ...]] = get_args(ExecutorKind)

CONCURRENCY: Final = 100
"""Default number of jobs at the same time, if they do not run in processes."""


class ExecutorLimits(NamedTuple):
    """The executor, how many jobs run at the same time, and when a process is replaced."""

    executor: ExecutorKind
    concurrency: int
    max_jobs: int | None
    max_rss: int | None
    """Bytes."""


def uses_processes(executor: ExecutorKind) -> bool:
    """Whether this executor runs jobs in child processes."""
    return executor in ("process", "fork")


def processors() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


LEAST_RSS: Final = 1_000_000
"""Bytes; the interpreter alone takes more."""


def check_limits(
    executor: ExecutorKind, concurrency: int | None, max_jobs: int | None, max_rss: int | str | None
) -> ExecutorLimits:
    """Check the options of a worker, and fill in the defaults.

    Raises:
        UsageError: an option is invalid.
    """
    if executor not in EXECUTORS:
        raise UsageError(f"executor must be one of {', '.join(EXECUTORS)}, not {executor!r}.")
    if uses_processes(executor) and not sys.platform.startswith("linux"):
        raise UsageError(f"executor={executor!r} needs Linux; here, use executor='auto'.")
    if concurrency is None:
        concurrency = processors() if uses_processes(executor) else CONCURRENCY
    counts = {"concurrency": concurrency, "max_jobs": max_jobs}
    for name, value in counts.items():
        is_count = isinstance(value, int) and not isinstance(value, bool) and value >= 1
        if value is not None and not is_count:
            raise UsageError(f"{name} must be 1 or more, not {value!r}.")
    if max_rss is not None and executor != "process":
        raise UsageError(f"max_rss= is for executor='process', not {executor!r}.")
    if max_jobs is not None and executor == "fork":
        raise UsageError("max_jobs= has no effect with executor='fork': a process runs one job.")
    most = None if max_rss is None else to_bytes(max_rss, "max_rss")
    if most is not None and most < LEAST_RSS:
        raise UsageError(
            f"max_rss={max_rss!r} is in bytes, and less than any child needs; write for example "
            "'500MB'."
        )
    return ExecutorLimits(executor, concurrency, max_jobs, most)


def make_executor(
    worker: str,
    limits: ExecutorLimits,
    served: TaskRegistry,
    modules: Sequence[str],
    pickled: set[str],
    keyring: Keyring | None,
    root: str,
    changed: Callable[[], None],
) -> Executor:
    """Create the executor of a worker, in the event loop that will receive the outcomes."""
    if not uses_processes(limits.executor):
        return LocalExecutor(worker, served, limits.concurrency, limits.max_jobs, pickled, changed)
    held = config.overridden()
    setting = Setting(
        executor="fork" if limits.executor == "fork" else "process",
        worker=worker,
        modules=list(modules),
        also=sorted(registering_modules() - set(modules) - {*MAIN}),
        pickled=sorted(pickled),
        url=held.url,
        prefix=held.prefix,
        root=root,
        signing_keys=keyring.text if keyring else None,
        log=logs.settings(),
        max_jobs=limits.max_jobs,
        max_rss=limits.max_rss,
    )
    return ProcessExecutor(ProcessPool(setting, limits.concurrency), changed)
