"""Where a test's jobs run: an event loop, a thread, and the resources that are open there.

Without an event loop, plain functions run in the calling thread, so that what belongs to that
thread (a database transaction, say) is theirs too, and coroutines in a loop that exists for them.
Under an event loop, coroutines run in it, and plain functions in threads, as in a worker.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context, copy_context
from typing import Any, NamedTuple, TypeVar

from bide.errors import UsageError
from bide.resource import Resource
from bide.worker.calling import Wait, from_thread
from bide.worker.lifespan import Lifespan

T = TypeVar("T")


class Plain(NamedTuple):
    """A step: call a plain function, which is told how to wait for coroutines."""

    context: Context
    function: Callable[[Wait], Any]


class Awaited(NamedTuple):
    """A step: await a coroutine."""

    context: Context
    coroutine: Coroutine[Any, Any, Any]


Steps = Generator[Plain | Awaited, Any, T]
"""Code that says what is to be run, and is sent what it returned."""

Caught = tuple[Any, BaseException | None]
"""What a job's own code returned, and what it raised instead."""


def catch(function: Callable[..., Any], *args: Any) -> Caught:
    """Call a job's own code; only what is meant for the test passes."""
    try:
        return function(*args), None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return None, error


async def catch_async(coroutine: Coroutine[Any, Any, Any]) -> Caught:
    """Await a job's own code, in a task of its own; only what is meant for the test passes."""
    task = asyncio.current_task()
    try:
        return await coroutine, None
    except KeyboardInterrupt:
        raise
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling():
            raise
        return None, error
    except BaseException as error:
        return None, error


class AsyncStage:
    """The event loop that runs now."""

    def __init__(self, opens_nothing: str = "") -> None:
        """Set up.

        Args:
            opens_nothing: why resources cannot be opened here, if they cannot.
        """
        self.lifespan = Lifespan()
        self._opens_nothing = opens_nothing
        self._loop = asyncio.get_running_loop()
        self._orders: asyncio.Queue[tuple[Coroutine[Any, Any, None], asyncio.Future[None]]] = (
            asyncio.Queue()
        )
        self._keeper: asyncio.Task[None] | None = None

    async def play(self, steps: Steps[T]) -> T:
        """Run all steps; what they return. What a step raises ends the play."""
        try:
            step = next(steps)
            while True:
                step = steps.send(await self._take(step))
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]

    async def _take(self, step: Plain | Awaited) -> Any:
        if isinstance(step, Awaited):
            return await self._loop.create_task(step.coroutine, context=step.context)
        wait = from_thread(self._loop)
        function = step.function
        return await self._loop.run_in_executor(None, lambda: step.context.run(function, wait))

    async def open(self) -> None:
        """Open all resources, as a worker does when it starts."""
        await self._keep(self.lifespan.open())

    async def open_for(self, injected: Iterable[Resource[Any]]) -> None:
        """Open these resources and what they need.

        Raises:
            UsageError: none can be opened here.
        """
        if self._opens_nothing:
            raise UsageError(self._opens_nothing)
        await self._keep(self.lifespan.open_for(injected))

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to close."""
        return self._keeper is None

    async def close(self) -> None:
        """Close what is open."""
        if self._keeper is not None:
            await self._keep(self.lifespan.close())
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
            self._keeper = None

    async def _keep(self, order: Coroutine[Any, Any, None]) -> None:
        """Have one task open and close everything: a cancel scope must be left where entered."""
        if self._keeper is None:
            self._keeper = self._loop.create_task(self._obey())
        done: asyncio.Future[None] = self._loop.create_future()
        self._orders.put_nowait((order, done))
        await done

    async def _obey(self) -> None:
        while True:
            order, done = await self._orders.get()
            try:
                await order
            except asyncio.CancelledError:
                done.cancel()
                raise
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)


class Stage:
    """This thread, and an event loop for the coroutines that it waits for."""

    def __init__(self) -> None:
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._inner: AsyncStage | None = None
        self._lock = threading.RLock()

    @property
    def lifespan(self) -> Lifespan:
        """The resources that are open here."""
        return self._stage().lifespan

    def play(self, steps: Steps[T]) -> T:
        """Run all steps; what they return. Threads take their turns."""
        with self._lock:
            self._stage()
            try:
                step = next(steps)
                while True:
                    step = steps.send(self._take(step))
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]

    def _take(self, step: Plain | Awaited) -> Any:
        if isinstance(step, Awaited):
            return self._runner.run(step.coroutine, context=step.context)
        return step.context.run(step.function, self._wait)

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(coroutine, context=copy_context())

    def open(self) -> None:
        """Open all resources, as a worker does when it starts."""
        self._runner.run(self._stage().open())

    async def open_for(self, injected: Iterable[Resource[Any]]) -> None:
        """Open these resources and what they need; a step of its own."""
        await self._stage().open_for(injected)

    def close(self) -> None:
        """Close what is open, then the event loop."""
        if self._inner is not None:
            self._runner.run(self._inner.close())
        self._runner.close()

    def _stage(self) -> AsyncStage:
        if self._inner is None:
            self._inner = self._runner.run(_make())
        return self._inner


async def _make() -> AsyncStage:
    return AsyncStage()


def is_in_loop() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def outside_of_loops(function: Callable[[], T]) -> T:
    """Call a function that may run an event loop: in another thread, if one runs in this."""
    if not is_in_loop():
        return function()
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(copy_context().run, function).result()
