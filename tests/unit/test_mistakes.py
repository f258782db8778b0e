"""Mistakes of callers that need no server: each raises one sentence that names the fix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

import bide
from bide import PayloadError, Queue, Retry, TaskNotFound, UsageError, chain, logs
from bide.cli.options import import_from_here
from bide.client.config import _read
from bide.client.url import resolve_url
from bide.embedded import Server, ServerError
from bide.model.payload.body import encode_result
from bide.tasks import middleware
from bide.tasks.middleware import checked_context
from bide.tasks.task import import_module
from bide.testing import isolated_registry
from bide.web import app

pytestmark = pytest.mark.bide_real_server  # a queue that no call of these reaches

NOW = datetime(2030, 1, 31, tzinfo=UTC)

queue = Queue("work", url="redis://127.0.0.1:1/0")


def resize(width: int) -> None: ...


def anything(*args: Any, **kwargs: Any) -> None: ...


task: Any = queue.task(resize)


@dataclass
class Price:
    cents: int

    def __post_init__(self) -> None:
        self.cents *= 100


@queue.task
def charge(price: Price) -> None: ...


@queue.task(unique=bide.batch("1m"))
def charge_all(prices: list[Price]) -> None: ...


class Cheaper(bide.Middleware):
    def enqueuing(self, queue: str, body: bide.Body) -> bide.Body:
        return msgspec.structs.replace(body, args=[Price(0)])


@pytest.mark.parametrize("call", [charge, charge.options(retry=1), charge_all])
def test_an_object_that_would_arrive_changed_is_refused(call: Any) -> None:
    for _ in range(2):  # the annotations are known from the first call on
        with pytest.raises(PayloadError, match=r"'prices?' of .* would not arrive as it is"):
            call.prepare(Price(1))
    assert call.prepare(Price(0))
    assert Queue("pickled", url="redis://127.0.0.1:1/0").prepare("work:unknown", [Price(1)])


def test_the_arguments_that_middleware_returns_are_checked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(middleware, "in_use", [Cheaper()])
    assert charge.prepare(Price(1))


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
        (
            lambda: queue.enqueue(task, args=(1,)),
            r"no argument 'args' .*to queue\.enqueue_call\(function, args, kwargs\)",
        ),
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


class Late(bide.Middleware):
    def runing(self, job: bide.CurrentJob) -> None: ...


class Traced(bide.Middleware):
    def sending(self, queue: str, jobs: Any) -> Any:
        yield

    async def running(self, job: bide.CurrentJob) -> None:  # type: ignore[override]
        ...


def test_a_middleware_has_a_hook_and_is_added_once() -> None:
    with isolated_registry():
        with pytest.raises(
            UsageError, match=r"Late overrides no hook .*, and runing is never called"
        ):
            bide.add_middleware(Late())
        traced = bide.add_middleware(Traced())
        with pytest.raises(UsageError, match="was added before"):
            bide.add_middleware(traced)
        bide.add_middleware(Traced())  # another object may do something else
        bide.add_middleware(bide.Middleware())


def test_a_hook_that_is_a_generator_needs_a_decorator() -> None:
    with isolated_registry():
        traced: Any = bide.add_middleware(Traced())
        with pytest.raises(
            UsageError, match=r"Traced\.sending must .* not generator; put @contextmanager above it"
        ):
            queue.enqueue(task, 1)
        with pytest.raises(UsageError, match=r"Traced\.running must .* or None, not coroutine\.$"):
            checked_context(traced.running(None), traced, "running")


def test_resources() -> None:
    def needs_a_url(url: str) -> Iterator[str]:
        yield url

    def opened() -> Iterator[str]:
        yield "value"

    with isolated_registry():
        with pytest.raises(UsageError, match="has an argument 'url', and no caller passes one"):
            bide.resource(needs_a_url)
        with pytest.raises(UsageError, match="without parentheses"):
            bide.resource()  # type: ignore[call-overload]
        made: Any = bide.resource(opened)
    with pytest.raises(UsageError, match=r"take its value as an argument .*opened\.injected"):
        made()
    for use in (lambda x: x(), lambda x: x["a"], list, enter, lambda x: x.get):
        with pytest.raises(UsageError, match="is open only in a worker"):
            use(made.injected)


def enter(value: Any) -> None:
    with value:
        raise AssertionError


def wait() -> Any:
    """Stand for a coroutine function, which the caller calls by mistake."""
    return object()


@pytest.mark.parametrize(
    ("mistake", "says"),
    [
        (lambda: bide.Worker("q", modules=bide), "modules must be names such as 'shop.tasks'"),  # type: ignore[arg-type]
        (lambda: bide.Worker("q", modules=[resize]), "modules must be names"),  # type: ignore[list-item]
        (lambda: bide.Worker(bide.DelayQueue("q")), "serves queues of jobs, or their names, not"),  # type: ignore[arg-type]
        (lambda: bide.Worker("q", executor="process", max_rss=500), "write for example '500MB'"),
        (lambda: bide.Worker("q").run(beside=wait()), "beside must be a coroutine function"),
        (lambda: logs.setup(stream="worker.log"), "stream must be an open file"),  # type: ignore[arg-type]
    ],
)
def test_workers_and_logs(mistake: Callable[[], Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        mistake()


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"queues": "mail"}, r"a list of names, such as \['mail'\]"),
        ({"local_role": "admin"}, "'viewer' or 'operator', not 'admin'"),
        ({"authorize": "operator"}, "must be a function that takes a request"),
        ({"outboxes": ["shop"]}, "must be a dict of each Outbox by its name"),
        ({"outboxes": {"shop": queue}}, "which is not an Outbox"),
        ({"viewer_token": "0123456789abcdef\n"}, "line break around it"),
    ],
)
def test_the_dashboard(given: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        app(**({"local_role": "viewer"} | given))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[bide]\nurl = 'x'", r"has a table \[bide\], which has no effect; write \[tool\.bide\]"),
        ("[tools.bide.worker]\n", r"has a table \[tools\.bide\]"),
        ("[tool.bide]\nworkers = 3", r"write workers = 3 into \[tool\.bide\.worker\]"),
    ],
)
def test_tables_of_the_file(text: str, says: str, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match=says):
        _read(tmp_path / "pyproject.toml")


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes(b"\xef\xbb\xbf[tool.bide]\nprefix = 'shop'")
    assert _read(tmp_path / "pyproject.toml").prefix == "shop"


def test_modules_that_are_not_what_they_seem(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "queue.py").touch()
    (tmp_path / "with_arguments.py").write_text("import sys; sys.exit(2)")
    with pytest.raises(UsageError, match=r"imported instead of queue\.py; rename that file"):
        import_module("queue")
    with pytest.raises(TaskNotFound, match=r"SystemExit: 2\).* `if __name__ == '__main__':`"):
        import_module("with_arguments")
    assert import_module("json")


@pytest.mark.parametrize(
    ("look", "says"),
    [
        (lambda: task.s, r"write task\.prepare"),
        (lambda: task.enqueue_many, r"write queue\.enqueue_many\(task\.prepare"),
        (lambda: untyped(queue).enqueue_in, r"write queue\.enqueue\(function, \.\.\., delay="),
        (lambda: untyped(queue).empty, r"'Queue' object has .* write queue\.purge\(\)$"),
        (lambda: untyped(queue).nothing, "'Queue' object has no attribute 'nothing'$"),
        (lambda: untyped(bide.Job(queue, "a")).get_status, r"write job\.refresh\(\)\.state"),
        (lambda: untyped(bide.Job(queue, "a")).status, r"write job\.state$"),
        (lambda: untyped(queue).enqueue_at, r"write queue\.enqueue\(function, \.\.\., at=moment"),
        (lambda: untyped(bide.Worker("a")).work, r"'Worker' object .* write worker\.run\(burst="),
        (lambda: untyped(bide.Worker("a")).nothing, "'Worker' object has no attribute 'nothing'$"),
        (lambda: untyped(bide).task, r"no attribute 'task'; write queue\.task, with queue = bide"),
    ],
)
def test_names_of_other_libraries(look: Callable[[], Any], says: str) -> None:
    with pytest.raises(AttributeError, match=says):
        look()


def untyped(value: Any) -> Any:
    return value


def test_what_an_embedded_server_cannot_start_with(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "log" / "server.log").mkdir(parents=True)
    (tmp_path / "lock" / "server.lock").mkdir(parents=True)
    for name in ("file", "file/below", "log", "lock"):
        with pytest.raises(ServerError, match=r"cannot be started in .* \(.*choose a directory"):
            Server.start(tmp_path / name)
    with pytest.raises(ServerError, match="extra is a list of words"):
        Server.start(extra="--maxmemory 10mb")


def test_a_working_directory_that_was_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    with pytest.raises(UsageError, match="The working directory was removed"):
        import_from_here()


def test_the_function_of_a_key_has_the_parameters_of_the_task() -> None:
    with pytest.raises(UsageError, match=r"does not fit the arguments of .*dated .*unexpected"):
        queue.prepare("shop:dated", (), {"day": "monday"}, unique=bide.Unique(lambda date: date))

    def breaks(day: str) -> str:
        raise TypeError(f"{day} has no number")

    with pytest.raises(TypeError, match="monday has no number"):
        queue.prepare("shop:dated", ("monday",), unique=bide.Unique(breaks))
