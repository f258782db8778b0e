"""Opens resources before the first job, closes them after the last, and runs event loops.

`asyncio.run` cancels the remaining tasks and waits for them without a limit. So a job that ignores
its cancellation would keep the process alive. `run` waits for a limited time only.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import inspect
import logging
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final, TypeVar

from bide.errors import UsageError
from bide.logs import Log, count
from bide.tasks.registry import Resource, resources

log = Log("bide.worker")

CLOSING: Final = 10.0
"""Seconds that each resource may take to close."""


SLOW: Final = 10.0
"""Seconds after which a resource that still opens is logged."""
_OPENS: Final = "The resource %s is not open after %g s; the worker runs no job before that"

_END: Final = object()
"""The value that an ended generator gives."""


class Lifespan:
    """The resources that one worker has open."""

    def __init__(self) -> None:
        self._open: list[tuple[Resource[Any], Any]] = []
        self._values: dict[Resource[Any], Any] = {}

    async def open(self) -> None:
        """Open all registered resources in order; an error of one stops the worker."""
        for resource in resources():
            await self._open_one(resource)

    async def open_for(self, injected: Iterable[Resource[Any]]) -> None:
        """Open these resources unless they are open, after the resources that they need."""
        for resource in injected:
            if resource not in self._values:
                await self.open_for(_needs(resource).values())
                await self._open_one(resource)

    async def _open_one(self, resource: Resource[Any]) -> None:
        given = self.values_for(_needs(resource))
        generator = resource.function(**given)
        late = threading.Timer(SLOW, log.warning, (_OPENS, resource.name, SLOW))
        late.daemon = True
        late.start()
        try:
            value = await anext(generator) if resource.is_async else next(generator)
        except (StopIteration, StopAsyncIteration):
            raise UsageError(
                f"The resource {resource.name} ended without a yield; let it yield once."
            ) from None
        except Exception as error:
            error.add_note(f"The resource {resource.name} raised when it was opened")
            raise
        finally:
            late.cancel()
        self._open.append((resource, generator))
        self._values[resource] = value

    async def close(self) -> None:
        """Close the open resources, the last first; an error is logged, and the others close."""
        while self._open:
            resource, generator = self._open.pop()
            try:
                async with asyncio.timeout(CLOSING):
                    if resource.is_async:
                        left = await anext(generator, _END)
                        await generator.aclose()
                    else:
                        left = next(generator, _END)
                        generator.close()
                if left is not _END:
                    log.error("The resource %s yielded twice; let it yield once", resource.name)
            except TimeoutError:
                log.warning("The resource %s took more than %g s to close", resource.name, CLOSING)
            except BaseException:  # also a SystemExit: the other resources must be closed
                log.exception("The resource %s raised when it was closed", resource.name)
        self._values.clear()

    def values_for(self, injected: Mapping[str, Resource[Any]]) -> dict[str, Any]:
        """Return the values of these resources, by the names of their parameters.

        Raises:
            UsageError: a resource is not open.
        """
        try:
            return {name: self._values[resource] for name, resource in injected.items()}
        except KeyError as missing:
            (resource,) = missing.args
            raise UsageError(
                f"The resource {resource.name} is not open; register it in a module that the "
                "worker imports before it starts, and before what needs it."
            ) from None


def _needs(resource: Resource[Any]) -> dict[str, Resource[Any]]:
    """Return the resources that a resource needs, by the names of its parameters."""
    defaults = {
        name: getattr(parameter.default, "__bide_resource__", None)
        for name, parameter in inspect.signature(resource.function).parameters.items()
    }
    return {name: needed for name, needed in defaults.items() if needed is not None}


T = TypeVar("T")

LAST_WORDS: Final = 1.0
"""Seconds for cancelled tasks to end."""


def check_none_runs() -> None:
    """Check that this thread runs no event loop, because a second one could not run in it.

    Raises:
        UsageError: this thread runs an event loop.
    """
    with contextlib.suppress(RuntimeError):
        asyncio.get_running_loop()
        raise UsageError(
            "This thread already runs an event loop, which `run` would block; call "
            "`await worker.arun()`, or `run` in another thread."
        )


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in a new event loop, and abandon the tasks that do not end."""
    loop = new_event_loop()
    asyncio.set_event_loop(loop)
    task = loop.create_task(main)
    try:
        while True:
            try:
                return loop.run_until_complete(task)
            except BaseException as error:
                if task.done():
                    raise
                # A task that a job left running raised, or stopped the loop: the worker continues.
                log.error("a task that a job started tried to end the worker: %r", error)
    finally:
        end(loop)
        asyncio.set_event_loop(None)
        loop.close()


def end(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the tasks that an event loop still runs, and abandon those that do not end."""
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        _, deaf = loop.run_until_complete(asyncio.wait(tasks, timeout=LAST_WORDS))
        if deaf:
            log.warning("abandoned %s that did not end when cancelled", count(len(deaf), "task"))
    loop.run_until_complete(loop.shutdown_asyncgens())


def preload() -> None:
    """Import uvloop before a fork, so that each child does not have to."""
    with contextlib.suppress(ImportError):
        importlib.import_module("uvloop")


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return uvloop's event loop if it is installed (the extra `fast`), otherwise asyncio's."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


STOPS: Final = (signal.SIGINT, signal.SIGTERM)

_replaced: Final[dict[int, Any]] = {}
"""The handlers in whose place `heard` has set another, by signal."""


@contextmanager
def heard(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call a handler on SIGINT and SIGTERM inside the context.

    Outside the main thread this has no effect, because Python handles signals only there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    for number in STOPS:
        _replaced[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        _restore()


def _restore() -> None:
    while _replaced:
        signal.signal(*_replaced.popitem())


# A job may fork, for instance by `multiprocessing`. In the child, the worker's handler would stop a
# copy of the worker, and the child would live on. So the child gets the handlers from before. The
# signals are blocked until it has them, because Python drops a signal that arrives earlier.

_masks: Final = threading.local()


def _before_fork() -> None:
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPS if _replaced else ())


def _after_fork() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _in_child() -> None:
    _restore()
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)


def leave_threads_behind() -> None:
    """End the process if it still has threads of jobs for which Python would wait."""
    main = threading.main_thread()
    left = [t.name for t in threading.enumerate() if t is not main and not t.daemon]
    if left:
        log.warning("exiting although threads still run: %s", ", ".join(left))
        logging.shutdown()
        os._exit(0)
