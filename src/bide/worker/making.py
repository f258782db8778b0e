"""Choosing who runs a worker's jobs: its own process, or children."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bide import config, logs
from bide.payload.signing import Keyring
from bide.task import Served, registering_modules
from bide.worker.executors import Limits, is_apart
from bide.worker.processes.crew import Crew
from bide.worker.processes.house import House
from bide.worker.processes.wire import Setting
from bide.worker.running import Running


def make_running(
    worker: str,
    limits: Limits,
    served: Served,
    modules: Sequence[str],
    pickled: set[str],
    keyring: Keyring | None,
    root: str,
    changed: Callable[[], None],
) -> Running | Crew:
    """Make what runs a worker's jobs, in the event loop that will hear how they end.

    Args:
        worker: the worker's name.
        limits: its executor, and how many jobs it may run.
        served: the tasks that it runs in its own process.
        modules: those that children import.
        pickled: the queues whose arguments are read though they were pickled.
        keyring: what checks signatures.
        root: the prefix of all keys.
        changed: called when there is something to send.
    """
    if not is_apart(limits.executor):
        return Running(worker, served, limits.concurrency, limits.max_jobs, pickled, changed)
    held = config.overridden()
    setting = Setting(
        executor="fork" if limits.executor == "fork" else "process",
        worker=worker,
        modules=list(modules),
        also=sorted(registering_modules() - set(modules)),
        pickled=sorted(pickled),
        url=held.url,
        prefix=held.prefix,
        root=root,
        signing_keys=keyring.text if keyring else None,
        log=logs.settings(),
        max_jobs=limits.max_jobs,
        max_rss=limits.max_rss,
    )
    return Crew(House(setting, limits.concurrency), changed)
