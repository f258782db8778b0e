"""Mistakes of callers that need no server: each raises one sentence that names the fix."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import bide
from bide import PayloadError, Queue, Retry, UsageError, chain
from bide.client.url import resolve_url
from bide.model.payload.body import encode_result

pytestmark = pytest.mark.bide_real_server  # a queue that no call of these reaches

NOW = datetime(2030, 1, 31, tzinfo=UTC)

queue = Queue("work", url="redis://127.0.0.1:1/0")


def resize(width: int) -> None: ...


def anything(*args: Any, **kwargs: Any) -> None: ...


task: Any = queue.task(resize)


def prepared(width: int = 1) -> Any:
    return task.prepare(width)


async def coroutine(event: Any) -> None: ...


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lambda: chain([prepared(), prepared()]), r"write chain\(\*jobs\) to run one after"),
        (lambda: queue.batch(None, 1, into=anything), r"queue\.batch\(\) needs a key"),  # type: ignore[arg-type]
        (
            lambda: queue.batch("k", 1, into=anything, unique=bide.Unique()),
            "has a dedup policy already; leave unique= out",
        ),
        (lambda: bool(queue.where(state="failed")), r"ask its count\(\)"),
        (
            lambda: queue.where(since=NOW, until=NOW - timedelta(days=1)),
            "since is not before until",
        ),
        (
            lambda: queue.where(state="failed").retry(progress=True),  # type: ignore[arg-type]
            "progress must be a function",
        ),
        (lambda: queue.on("added", coroutine), r"coroutine function.* use AsyncQueue\.on"),
        (lambda: queue.events(job_id=5), "job_id must be the id of a job"),  # type: ignore[arg-type]
        (lambda: Queue("q", defaults=[("delay", 5)]), "defaults must be a dict such as"),  # type: ignore[arg-type]
        (lambda: Queue("q", retry_for="10s"), "retry_for must be from 0 to 10 seconds"),  # type: ignore[arg-type]
        (lambda: queue.prepare(task, (1,), retry=Retry), "retry must be a number of retries"),  # type: ignore[arg-type]
        (lambda: queue.prepare(task, (1,), retry=[1, 5]), r"backoff=\['1s', '1m'\]"),  # type: ignore[arg-type]
        (lambda: queue.prepare(task, (1,), retry=True), "not True"),
        (lambda: queue.upcoming(within=NOW), "within must be seconds.*not datetime\\.$"),  # type: ignore[arg-type]
        (
            lambda: queue.schedules.upsert("a", task, [1], every="1m", start=datetime(2030, 1, 1)),
            r"start=2030.* no time zone.*start\.replace\(",
        ),
        (
            lambda: queue.enqueue(task.options(priority=9), 1),
            r"has options of its own; enqueue it with task\.options\(\.\.\.\)\.enqueue",
        ),
        (lambda: queue.enqueue(str.upper, "a"), "is a built-in of Python"),
    ],
)
def test_each_raises_a_sentence_with_the_fix(mistake: Callable[[], Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        mistake()


def test_a_chain_of_one_job_or_of_a_list_and_a_job_is_fine() -> None:
    assert len(chain(prepared())) == len(chain([prepared()])) == 1
    assert len(chain([prepared(), prepared()], prepared())) == 3


@pytest.mark.parametrize(
    "returned", [bide.Snooze("1m"), bide.RetryLater("1m"), bide.PauseQueue("1m"), bide.Fail()]
)
@pytest.mark.parametrize("codec", ["json", "pickle"])
def test_an_exception_for_raising_that_is_returned_is_no_result(returned: Any, codec: Any) -> None:
    with pytest.raises(PayloadError, match=rf"raise {type(returned).__name__}\(\.\.\.\)\.$"):
        encode_result("shop:send", returned, codec)


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ('"redis://host:6379/0"', "quotes or spaces around the URL; leave them out"),
        (" redis://host:6379/0", "quotes or spaces"),
        ("redis://a:6379,b:6379/0", r"write redis\+cluster://HOST:PORT,HOST:PORT or"),
        ("redis://::1:6379/0", r"redis://\[ADDRESS\]:PORT/DB"),
        ("redis://host:99999/0", "a PORT of at most 65535"),
        ("unix://run/valkey.sock", "three slashes"),
        ("redis://host:6379/1?db=2", "names two databases, 1 and 2"),
    ],
)
def test_urls_that_are_nearly_right(url: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        resolve_url(url)


def test_urls_that_say_one_thing_twice_or_name_a_user_of_a_socket_are_right() -> None:
    for url in ("redis://host/1?db=1", "unix://user:password@/run/v.sock?db=1", "redis://[::1]/0"):
        assert resolve_url(url) == url
