"""Blocking and awaited facades have the same methods: who learns one knows the other."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from bide import (
    AsyncDelayQueue,
    AsyncGroup,
    AsyncItem,
    AsyncItems,
    AsyncJob,
    AsyncQueue,
    AsyncSchedules,
    AsyncTask,
    DelayQueue,
    Group,
    Item,
    Items,
    Job,
    Queue,
    Schedules,
    Task,
)
from bide.client import aio
from bide.client import blocking as sync
from bide.model.options import Options
from bide.queue import AsyncEventListener, AsyncEvents, EventListener, Events
from bide.queue._async.job import AwaitedCall
from bide.queue._sync.job import BlockingCall
from bide.queue.core import options_only

PAIRS = [
    (Queue, AsyncQueue),
    (Job, AsyncJob),
    (Task, AsyncTask),
    (DelayQueue, AsyncDelayQueue),
    (Item, AsyncItem),
    (Items, AsyncItems),
    (BlockingCall, AwaitedCall),
    (sync.Client, aio.AsyncClient),
    (Group, AsyncGroup),
    (Events, AsyncEvents),
    (EventListener, AsyncEventListener),
    (Schedules, AsyncSchedules),
]
SMALL = {Events, EventListener}
"""Of few methods that are not called by name."""

ONLY_AWAITED = {
    aio.AsyncClient: {
        *("abandon", "encode", "listen", "load", "load_everywhere", "ping", "pop", "share"),
    },
    AsyncEventListener: {"abandon"},
}
"""Only callers on an event loop use these: the start of a worker, its listener for wake-up
messages, its foreseen claims, its clock and its cancels; many callers that wait at once; and a
queue whose event loop has ended."""

ONLY_BLOCKING = {"begin"}
"""On an event loop others do something meanwhile anyway."""

ASKS_NOBODY = {
    *("task", "later", "options", "__call__", "waiting_for", "listen", "abandon", "encode"),
    *("take", "each", "wake_listener", "events", "cron", "every", "group", "where"),
}
"""Methods of both kinds that send nothing by themselves."""

every_pair = pytest.mark.parametrize(
    ("blocking", "awaited"), PAIRS, ids=[f"{b.__module__}.{b.__name__}" for b, _ in PAIRS]
)


def public(kind: type) -> dict[str, Any]:
    return {
        name: member
        for name, member in inspect.getmembers(kind)
        if (not name.startswith("_") or name == "__init__") and name not in ONLY_BLOCKING
    }


def described(function: Callable[..., Any]) -> list[tuple[str, Any, Any, str]]:
    """Each parameter's name, kind, default and annotation, and what is returned."""
    signature = inspect.signature(function)
    parts = [(p.name, p.kind, p.default, str(p.annotation)) for p in signature.parameters.values()]
    return [*parts, ("return", None, None, str(signature.return_annotation))]


def unawaited(parts: list[tuple[str, Any, Any, str]]) -> list[tuple[str, Any, Any, str]]:
    """As the blocking twin would say it."""

    def said(text: Any) -> Any:
        if text is None:
            return None
        for name in (
            *("Job", "Queue", "Task", "DelayQueue", "Item", "Items", "Iterator", "Taking"),
            *(
                "Events",
                "EventListener",
                "Schedules",
                "Group",
                "WakeListener",
                "Waiter",
                "Selection",
            ),
        ):
            text = text.replace(f"Async{name}", name)
        return text.replace("AwaitedCall", "BlockingCall").replace(
            "aio.AsyncClient", "blocking.Client"
        )

    return [(name, kind, default, said(type_)) for name, kind, default, type_ in parts]


@every_pair
def test_they_have_the_same_public_names(blocking: type, awaited: type) -> None:
    assert set(public(awaited)) - ONLY_AWAITED.get(awaited, set()) == set(public(blocking))


@every_pair
def test_methods_take_and_return_the_same(blocking: type, awaited: type) -> None:
    twins = public(awaited)
    compared = 0
    for name, member in public(blocking).items():
        if inspect.isfunction(member):
            assert unawaited(described(twins[name])) == described(member), name
            compared += 1
    assert compared >= (1 if blocking in SMALL else 4)


@every_pair
def test_what_asks_the_server_is_awaited_and_what_does_not_is_not(
    blocking: type, awaited: type
) -> None:
    twins = public(blocking)
    for name, member in public(awaited).items():
        if inspect.isfunction(member) and name != "__init__":
            asks = member is not twins.get(name) and name not in ASKS_NOBODY
            assert inspect.iscoroutinefunction(member) == asks, name
    for name, member in public(blocking).items():
        assert not inspect.iscoroutinefunction(member), name


@every_pair
def test_properties_are_properties_of_both(blocking: type, awaited: type) -> None:
    twins = public(awaited)
    for name, member in public(blocking).items():
        assert isinstance(twins[name], property) == isinstance(member, property), name


@every_pair
def test_every_public_method_says_what_it_does(blocking: type, awaited: type) -> None:
    for kind in (blocking, awaited):
        for name, member in public(kind).items():
            assert name == "__init__" or member.__doc__, f"{kind.__name__}.{name}"


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
@pytest.mark.parametrize("name", Options.__annotations__)
def test_each_option_of_enqueue_is_given_on_by_its_name(
    kind: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def enqueue_call(self: Any, task: Any, args: Any, kwargs: Any, **options: Any) -> Any:
        asked.append((args, kwargs, options))
        return asyncio.sleep(0)

    monkeypatch.setattr(kind, "enqueue_call", enqueue_call)
    adding = kind("mail").enqueue("app:task", 1, key=2, **{name: 3})
    if kind is AsyncQueue:
        asyncio.run(adding)
    else:
        adding.close()
    assert asked == [((1,), {"key": 2}, {name: 3})]


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_enqueue_has_a_parameter_for_each_option(kind: Any) -> None:
    parameters = inspect.signature(kind.enqueue).parameters.values()
    options = {one.name for one in parameters if one.kind is one.KEYWORD_ONLY}
    assert options == set(Options.__annotations__)


def test_whether_an_option_was_given_its_value_is_not_asked() -> None:
    class Vague(list[str]):
        def __eq__(self, other: object) -> bool:
            raise ValueError("the truth of this is ambiguous")

    parents = Vague(["a"])
    values = dict.fromkeys(Options.__annotations__) | {"depends_on": parents}
    assert options_only("app:task", values)["depends_on"] is parents
