"""Which names a function goes by, and which names a worker will run."""

from __future__ import annotations

import asyncio
import functools
import gc
import os
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bide import AsyncQueue, Middleware, Queue, Retry, resource
from bide.errors import TaskNotFound, UsageError
from bide.model.payload.body import Body, decode_body
from bide.protocol.commands.enqueue import Prepared
from bide.tasks import middleware, task
from bide.tasks.registry import task_name
from bide.tasks.task import TaskRegistry, import_task, known, register, with_owner

MODULE = """
import subprocess
import functools
import os
from os import path, system
from functools import partial

def send(n): return n
async def send_async(n): return n
def _private(n): return n

@functools.wraps(send)
def wrapped(*args): return send(*args)

class Mailer:
    def __call__(self, n): return n
    @staticmethod
    def push(n): return n
    @classmethod
    def pull(cls, n): return n
    def _hidden(self): return 1
    def send(self, n): return n

class AsyncMailer:
    async def __call__(self, n): return n

class Settings:
    pass

class Starts(subprocess.Popen):
    @classmethod
    def fine(cls): return 1

settings = Settings()
mailer = Mailer()
async_mailer = AsyncMailer()
half = partial(send, 1)
number = 5
"""


class Sender:
    def __call__(self, n: int) -> int:
        return n

    def send(self, n: int) -> int:
        return n

    @classmethod
    def make(cls) -> Sender:
        return cls()

    @staticmethod
    def push(n: int) -> int:
        return n


def plain(n: int) -> int:
    return n


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A package on the path, with a module of tasks; its name."""
    (tmp_path / "shop_for_tests").mkdir()
    (tmp_path / "shop_for_tests" / "__init__.py").touch()
    (tmp_path / "shop_for_tests" / "tasks.py").write_text(MODULE)
    (tmp_path / "shop_for_tests" / "broken.py").write_text("import no_such_module_anywhere\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "shop_for_tests.tasks"
    for name in [name for name in sys.modules if name.startswith("shop_for_tests")]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_registered", {})


# -- names


def test_a_function_goes_by_its_module_and_name() -> None:
    assert task_name(plain) == f"{__name__}:plain"
    assert task_name(Sender.make) == f"{__name__}:Sender.make"
    assert task_name(Sender.push) == f"{__name__}:Sender.push"
    assert task_name(Sender.send) == f"{__name__}:Sender.send"


class Heir(Sender):
    """Inherits its methods."""


def test_a_method_goes_by_the_class_of_its_instance_which_travels_with_the_arguments() -> None:
    sender, heir = Sender(), Heir()
    assert task_name(sender.send) == f"{__name__}:Sender.send"
    assert task_name(heir.send) == f"{__name__}:Heir.send"
    assert with_owner(sender.send, [1, 2]) == (sender, 1, 2)
    for alone in (plain, Sender.make, Sender.push, "a:b"):
        assert with_owner(alone, [1]) == [1]


@pytest.mark.parametrize(
    "name", ["app.tasks:send", "a:b", "a.b.c:Mailer.push", "größe:f", "send_email", "send-email"]
)
def test_a_name_is_taken_as_it_is(name: str) -> None:
    assert task_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        "send email",
        "send/email",
        "1st",
        "send\n",
        "app.tasks:",
        ":send",
        "app..tasks:send",
        "app.tasks:a b",
        "app.tasks:send()",
        "os:system('x')",
        "a:b:c",
        "../x:y",
        "a.b:1c",
    ],
)
def test_text_that_is_no_name_is_refused_with_the_form(name: str) -> None:
    with pytest.raises(UsageError, match=r"is not a task's name; write 'package.module:function'"):
        task_name(name)


def test_a_dot_instead_of_a_colon_is_corrected() -> None:
    with pytest.raises(
        UsageError, match=r"'app.tasks.send' is not .*did you mean 'app.tasks:send'"
    ):
        task_name("app.tasks.send")


def test_a_module_with_an_error_is_said_to_be_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_for_tests.py").write_text("def f(:")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(TaskNotFound, match=r"SyntaxError.*it was found, .*correct the code"):
        TaskRegistry(["broken_for_tests"])


def test_what_is_not_a_task_is_refused_with_the_likely_mistake() -> None:
    with pytest.raises(
        UsageError, match=r"None is neither .*without calling it.*enqueue\(function"
    ):
        task_name(None)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"^A list is .* to queue\.enqueue_many\(\.\.\.\)\.$"):
        task_name([Prepared("a", "+0", 5, b"{}")])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="print is a built-in of Python, which no worker serves"):
        task_name(print)


def test_what_no_worker_could_find_is_refused_with_the_reason() -> None:
    def nested() -> None: ...

    with pytest.raises(UsageError, match="define the function at the top level of a module"):
        task_name(lambda: 0)
    with pytest.raises(UsageError, match="define the function at the top level of a module"):
        task_name(nested)
    with pytest.raises(UsageError, match=r"use functools\.wraps in a decorator of your own\.$"):
        task_name(nested)


def test_a_function_of_the_program_itself_is_refused_with_the_reason() -> None:
    def send() -> None: ...

    send.__module__, send.__qualname__ = "__main__", "send"
    with pytest.raises(UsageError, match=r"send is defined in the program.*move it to a module"):
        task_name(send)


def test_what_is_a_task_is_a_function() -> None:
    def values() -> Iterator[int]:
        yield 1

    async def values_async() -> Any:
        yield 1

    for queue in (Queue("mail"), AsyncQueue("mail")):
        for generator in (values, values_async, functools.partial(values)):
            with pytest.raises(UsageError, match=r"is a generator function, .* return a list, or"):
                queue.task(generator)
            with pytest.raises(UsageError, match="is a generator function"):
                queue.task(name="values")(generator)
        with pytest.raises(UsageError, match="Sender is a class, and a task is a function"):
            queue.task(Sender)
        for odd in ("send_email", 5):
            with pytest.raises(UsageError, match=f"takes a function, not {odd!r}; give a task its"):
                queue.task(odd)  # type: ignore[call-overload]


def test_a_task_names_the_call_of_bide_for_the_calls_of_other_libraries() -> None:
    for queue in (Queue("mail"), AsyncQueue("mail")):
        task: Any = queue.task(plain)
        for call, here in {
            "delay": r"task\.enqueue\(\.\.\.\), or with a delay task\.later",
            "apply_async": r"task\.options\(delay=\.\.\., queue=\.\.\.\)",
            "send": r"task\.enqueue\(\.\.\.\)$",
            "send_with_options": r"task\.options\(delay=",
        }.items():
            for each in (task, task.later(5)):
                with pytest.raises(AttributeError, match=f"no attribute '{call}'; write {here}"):
                    getattr(each, call)
                assert not hasattr(each, call)
        with pytest.raises(AttributeError, match=r"no attribute 'nothing'$"):
            task.nothing  # noqa: B018


def test_options_without_an_enqueue_are_not_a_call() -> None:
    for queue in (Queue("mail"), AsyncQueue("mail")):
        task: Any = queue.task(plain)
        with pytest.raises(
            UsageError, match=r"adds a job by task.options\(\.\.\.\).enqueue\(\.\.\.\)"
        ):
            task.options(delay="3s")(1)


def test_the_queue_of_a_call_is_a_queue() -> None:
    for queue in (Queue("mail"), AsyncQueue("mail")):
        task: Any = queue.task(plain)
        with pytest.raises(
            UsageError, match=r"queue must be a queue, not 'other'; write queue=Que"
        ):
            task.options(queue="other")


def test_a_queue_names_the_argument_that_takes_a_client() -> None:
    for kind in (Queue, AsyncQueue):
        with pytest.raises(
            UsageError, match=r"no argument 'connection'; give a client.*as url=\.$"
        ):
            kind("mail", connection=object())  # type: ignore[call-arg]


def test_one_job_for_enqueue_many_is_told_to_go_into_a_list() -> None:
    queue = Queue("mail")
    with pytest.raises(
        UsageError,
        match=r"list of jobs from queue\.prepare\(\.\.\.\); write enqueue_many\(\[job\]\)\.$",
    ):
        queue.enqueue_many(queue.prepare(plain, (1,)))  # type: ignore[arg-type]


def test_a_resource_as_a_default_value_is_refused() -> None:
    @resource
    def session() -> Iterator[int]:
        yield 1

    def send(order: int, db: Any = session) -> None: ...
    def sent(order: int, *, db: Any = session) -> None: ...

    for function in (send, sent):
        with pytest.raises(UsageError, match=r"write session.injected, and each run receives its"):
            Queue("mail").task(function)


@pytest.mark.parametrize("args", [(), (1, 2)])
def test_a_schedule_whose_arguments_do_not_fit_is_refused_at_the_decorator(args: Any) -> None:
    with pytest.raises(
        UsageError, match=r"^Schedule 'x1': .* argument.*the decorator passes args= "
    ):
        Queue("mail").every("1h", name="x1", args=args)(plain)


@pytest.mark.parametrize(
    ("given", "option"),
    [
        *((name, name) for name in ("delay", "at", "retry", "queue")),
        *(("countdown", "delay"), ("job_timeout", "timeout"), ("_job_id", "job_id")),
    ],
)
def test_an_option_among_the_arguments_says_where_options_go(given: str, option: str) -> None:
    task: Any = Queue("mail").task(plain)
    advice = rf"; an option of the job is given as in task\.options\({option}=\.\.\.\)\.$"
    with pytest.raises(UsageError, match=rf"takes no argument '{given}' .*{advice}"):
        task.prepare(1, **{given: 5})
    other: Any = Sender.send
    with pytest.raises(UsageError, match=rf"as in queue\.enqueue\(function, \.\.\., {option}="):
        Queue("mail").prepare(other, (Sender(),), {given: 5})
    if given != "queue":
        options: Any = {given: 5}
        if given != option:
            with pytest.raises(UsageError, match=f"'{given}' here; write {option}=... instead"):
                task.options(**options)
    with pytest.raises(UsageError) as caught:
        task.prepare(1, colour=5)
    assert "option" not in str(caught.value)


@functools.lru_cache
def cached(n: int) -> int:
    return n


def test_a_function_in_a_cache_of_functools_is_checked_at_the_enqueue() -> None:
    task: Any = Queue("mail").task(cached)
    assert task.prepare(n=1).body
    with pytest.raises(UsageError, match="needs its argument 'n'"):
        task.prepare()


@pytest.mark.parametrize(
    ("bound", "kind"), [(functools.partial(plain, 1), "partial"), (Sender(), "Sender")]
)
def test_what_has_no_name_is_refused(bound: Any, kind: str) -> None:
    with pytest.raises(UsageError, match=f"A {kind} has no name by which a worker could find it"):
        task_name(bound)


@pytest.mark.parametrize("value", [None, 5, {"a:b"}, b"a:b"])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(UsageError, match="neither a function nor a name"):
        task_name(value)


# -- what a worker serves


def test_a_worker_runs_the_functions_of_the_modules_it_serves(app: str) -> None:
    served = TaskRegistry([app])
    assert served.find(f"{app}:send").function(7) == 7
    assert served.find(f"{app}:wrapped").function(7) == 7
    assert served.find(f"{app}:Mailer.push").function(7) == 7
    assert served.find(f"{app}:Mailer.pull").function(7) == 7
    mailer = served.find(f"{app}:mailer").function
    assert mailer(7) == 7
    assert served.find(f"{app}:Mailer.send").function(mailer, 7) == 7


def test_a_name_that_is_similar_is_suggested(app: str) -> None:
    served = TaskRegistry([app])
    for wrong, right in {
        f"{app}:sned": "send",
        f"{app[:-1]}:send": f"{app}:send",
    }.items():
        with pytest.raises(TaskNotFound, match=rf"did you mean '{right}'\?\); "):
            served.find(wrong)
    for wrong in (f"{app}:archive", f"{app[:-1]}:archive", "os:system"):
        with pytest.raises(TaskNotFound) as caught:
            served.find(wrong)
        assert "did you mean" not in str(caught.value)


def test_a_file_is_not_a_module_and_the_module_is_named(
    app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = app.replace(".", "/") + ".py"
    with pytest.raises(UsageError, match=rf"is a file, .* write '{app}' instead\.$"):
        TaskRegistry([file])
    with pytest.raises(UsageError, match=rf"is a function, .* write '{app}' instead\.$"):
        TaskRegistry([f"{app}:send"])
    monkeypatch.chdir(tmp_path / "shop_for_tests")
    with pytest.raises(UsageError, match=rf"write '{app}' instead, and start in {tmp_path}\.$"):
        TaskRegistry(["tasks.py"])


def test_it_knows_which_are_coroutine_functions(app: str) -> None:
    served = TaskRegistry([app])
    assert not served.find(f"{app}:send").is_async
    assert served.find(f"{app}:send_async").is_async
    assert not served.find(f"{app}:mailer").is_async
    assert served.find(f"{app}:async_mailer").is_async


@pytest.mark.parametrize(
    "what",
    [
        "os.system",
        "system",
        "path.join",
        "functools.reduce",
        "partial",
        "half",
        "_private",
        "Mailer._hidden",
        "send.__globals__",
        "send.__class__",
        "Mailer.__init__",
        "__builtins__",
        "number",
        "settings",
        "missing",
        "Mailer.missing",
        "send.missing",
    ],
)
def test_and_nothing_that_the_module_only_imported_hides_or_lacks(app: str, what: str) -> None:
    with pytest.raises(TaskNotFound, match=rf"defines no public function '{what}'"):
        TaskRegistry([app]).find(f"{app}:{what}")


@pytest.mark.parametrize(
    "name", ["os:system", "builtins:eval", "subprocess:run", "shop_for_tests.other:send", "x:y"]
)
def test_a_module_that_is_not_served_is_not_touched_and_the_error_says_how(
    app: str, name: str
) -> None:
    module = name.partition(":")[0]
    with pytest.raises(TaskNotFound) as caught:
        TaskRegistry([app]).find(name)
    text = str(caught.value)
    assert f"modules served: {app}" in text
    assert f"`bide worker {module}`" in text
    assert "shop_for_tests.other" not in sys.modules


def test_a_worker_that_serves_no_module_says_so() -> None:
    with pytest.raises(TaskNotFound, match="modules served: none"):
        TaskRegistry().find("app.tasks:send")


def test_naming_a_module_in_a_payload_never_imports_it(app: str) -> None:
    sys.modules.pop("shop_for_tests.tasks", None)
    with pytest.raises(TaskNotFound):
        TaskRegistry().find(f"{app}:send")
    assert app not in sys.modules


def test_a_registered_function_is_run_wherever_its_module_is(app: str) -> None:
    assert register(plain) == f"{__name__}:plain"
    assert TaskRegistry().find(f"{__name__}:plain").function is plain


def test_a_decorated_function_is_still_itself() -> None:
    queue = Queue("mail", url="unix:///nonexistent/bide.sock")
    decorated = queue.task(plain)
    assert decorated(7) == 7
    assert (decorated.name, vars(decorated)["__name__"]) == (f"{__name__}:plain", "plain")
    assert TaskRegistry().find(decorated.name).function is plain
    assert task_name(decorated) == decorated.name


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_what_a_decorator_says_holds_for_the_task_wherever_it_runs(
    kind: type[Queue] | type[AsyncQueue],
) -> None:
    options: Any = {"timeout": "2m", "retry": 2, "retention": "1h", "on_success": "a:b"}
    kind("mail").task(on_crash="fail", **options)(plain)
    policy = TaskRegistry().find(f"{__name__}:plain").policy
    assert (policy.timeout, policy.keep, policy.on_crash) == (120.0, 3600.0, "fail")
    assert (policy.retry, policy.has_retry) == (Retry(2), True)
    assert (policy.on_success, policy.on_failure) == ("a:b", None)


def told(job: object, value: object) -> None: ...


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_success": 42}, "42 is neither a function nor a name"),
        ({"on_failure": lambda job, error: 0}, "define the function at the top level"),
        ({"on_success": "non.sense"}, "'non.sense' is not a task's name"),
        ({"on_failure": functools.partial(told, None)}, "A partial has no name"),
        ({"retry": Retry(3, lambda attempt, error: 1.0)}, "Retry.*cannot be stored with a job"),
    ],
)
def test_a_function_that_no_worker_finds_is_refused_by_the_decorator_as_by_an_enqueue(
    kind: type[Queue] | type[AsyncQueue], options: Any, text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        kind("mail").task(**options)(plain)
    with pytest.raises(UsageError, match=text):
        kind("mail").prepare(plain, [1], **options)
    kind("mail").task(on_success=told, on_failure=kind("mail").task(told))(plain)


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
@pytest.mark.parametrize(
    ("method", "instead"),
    [
        (Sender.send, r"queue.enqueue\(Sender\(...\).send, ...\)"),
        (vars(Sender)["make"], r"queue.enqueue\(Sender.make, ...\)"),
        (vars(Sender)["make"].__func__, r"queue.enqueue\(Sender.make, ...\)"),
    ],
    ids=["method", "classmethod-below", "classmethod-above"],
)
def test_a_method_is_refused_by_the_decorator_with_what_to_do_instead(
    kind: type[Queue] | type[AsyncQueue], method: Any, instead: str
) -> None:
    with pytest.raises(UsageError, match=f"is a method.*{instead}"):
        kind("mail").task(method)
    with pytest.raises(UsageError, match="is a method"):
        kind("mail").task(timeout=3)(method)
    with pytest.raises(TaskNotFound):
        TaskRegistry().find(f"{__name__}:Sender.send")


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_a_static_method_is_a_task_in_either_order(kind: type[Queue] | type[AsyncQueue]) -> None:
    async def push(n: int) -> int:
        return n

    push.__qualname__ = "Sender.push"
    below = kind("mail").task(staticmethod(push))
    assert (below.function, TaskRegistry().find(below.name).is_async) == (push, True)
    above: Any = staticmethod(kind("mail").task(push))
    assert above.__func__.function is push
    assert TaskRegistry().find(f"{__name__}:Sender.push").function is push
    bound = kind("mail").task(Sender.make)
    assert bound.name == f"{__name__}:Sender.make"


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_what_other_decorators_left_on_a_function_does_not_replace_what_is_the_tasks(
    kind: type[Queue] | type[AsyncQueue],
) -> None:
    def tagged(n: int) -> int:
        """Return it."""
        return n

    tagged.__qualname__ = "tagged"
    vars(tagged).update(queue="other", name="other", function=None, _options=None, label="kept")
    queue = kind("mail")
    task = queue.task(tagged)
    assert (task.queue, task.name, task.function) == (queue, f"{__name__}:tagged", tagged)
    assert (task.__doc__, vars(task)["__wrapped__"]) == ("Return it.", tagged)
    assert vars(tagged)["label"] == "kept"
    task.options(timeout=3).prepare(1)


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
@pytest.mark.parametrize("other", [Queue, AsyncQueue])
def test_a_task_of_one_queue_becomes_one_of_another_too(
    kind: type[Queue] | type[AsyncQueue], other: type[Queue] | type[AsyncQueue]
) -> None:
    async def send(n: int) -> int:
        return n

    send.__qualname__ = "send"
    first, second = kind("mail"), other("bulk")
    inner = first.task(timeout=7)(send)
    both: Any = second.task(inner)
    assert (inner.queue, both.queue, both.function) == (first, second, send)
    target = TaskRegistry().find(f"{__name__}:send")
    assert (target.function, target.is_async, target.policy.timeout) == (send, True, 7.0)
    second.task(timeout=8)(both)
    assert TaskRegistry().find(f"{__name__}:send").policy.timeout == 8.0


def test_without_options_a_task_has_the_usual_ones() -> None:
    register(plain)
    policy = TaskRegistry().find(f"{__name__}:plain").policy
    assert (policy.timeout, policy.keep, policy.on_crash) == (300.0, None, "rerun")
    assert (policy.retry.max, policy.has_retry) == (0, False)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"timeout": 0}, "timeout must be more than 0, not 0"),
        ({"timeout": -1}, "timeout must be more than 0, not -1"),
        ({"timeout": "soon"}, "timeout"),
        ({"on_crash": "explode"}, "on_crash must be 'rerun' or 'fail'"),
        ({"retention": -1}, "retention"),
    ],
)
def test_an_option_that_cannot_be_meant_is_an_error_where_it_is_written(
    options: Any, text: str
) -> None:
    with pytest.raises(UsageError, match=text):
        Queue("mail").task(**options)(plain)
    with pytest.raises(UsageError, match=text):
        Queue("mail").prepare(plain, [1], **options)
    with pytest.raises(TaskNotFound):
        TaskRegistry().find(f"{__name__}:plain")


def test_a_function_that_could_not_be_found_cannot_be_registered() -> None:
    with pytest.raises(UsageError):
        register(lambda: 0)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("no_such_module_anywhere", r"ModuleNotFoundError.*; start from the directory"),
        (
            "shop_for_tests.broken",
            "No module named 'no_such_module_anywhere'.*; it was found, and imports "
            "'no_such_module_anywhere': install that here",
        ),
    ],
)
def test_a_module_that_cannot_be_imported_is_an_error_at_once(
    app: str, module: str, reason: str
) -> None:
    with pytest.raises(TaskNotFound, match=rf"{module!r} cannot be imported .*{reason}"):
        TaskRegistry([module])


def test_a_name_that_a_person_types_is_imported(app: str) -> None:
    assert import_task(f"{app}:send")(7) == 7
    with pytest.raises(TaskNotFound, match=r"defines no public function 'os.system'"):
        import_task(f"{app}:os.system")
    assert callable(os.system)


# -- options and arguments of one name


def visit(url: str, timeout: float = 5, *, delay: float = 0, **more: Any) -> str:
    return url


def positional(timeout: float, /, **more: Any) -> float:
    return timeout


class Sent(Exception):
    """What would have been enqueued."""


def enqueue(kind: type[Queue] | type[AsyncQueue], task: Any, *args: Any, **kwargs: Any) -> Body:
    """The body that an enqueue makes; it goes no further."""
    queue = kind("mail")
    made: list[Prepared] = []

    def taken(jobs: list[Prepared]) -> None:
        made.extend(jobs)
        raise Sent

    queue._send = taken  # type: ignore[method-assign,assignment]
    with suppress(Sent):
        job = queue.enqueue(task, *args, **kwargs)
        asyncio.run(job)  # type: ignore[arg-type]
    return decode_body(made[0].body)


BOTH = pytest.mark.parametrize("kind", [Queue, AsyncQueue])


@BOTH
@pytest.mark.parametrize("option", [{"timeout": 7}, {"delay": 3}, {"delay": 0, "priority": 9}])
@pytest.mark.parametrize("named", [False, True])
def test_an_option_that_may_be_an_argument_is_refused_with_both_ways_to_say_it(
    kind: type[Queue] | type[AsyncQueue], option: dict[str, Any], named: bool
) -> None:
    task: Any = register(visit) if named else visit
    name = next(iter(option))
    text = rf"{name}= is an option .* argument of .*visit too; .*enqueue_call\(f, .*task.enqueue\("
    with pytest.raises(UsageError, match=text):
        enqueue(kind, task, "u", **option)
    with pytest.raises(UsageError, match=text):
        enqueue(kind, kind("mail").task(visit), "u", **option)


@BOTH
def test_one_that_cannot_be_is_the_jobs(kind: type[Queue] | type[AsyncQueue]) -> None:
    assert enqueue(kind, visit, "u", retention=3, x=1).kwargs == {"x": 1}
    assert enqueue(kind, visit, "u", 4, priority=3).args == ["u", 4]
    assert enqueue(kind, positional, 1, timeout=7).timeout == 7.0
    assert enqueue(kind, "elsewhere:visit", "u", timeout=7).timeout == 7.0
    assert enqueue(kind, plain, 1, timeout=7).timeout == 7.0


# -- what a middleware makes of a body


class Makes(Middleware):
    def __init__(self, make: Callable[[Body], Any]) -> None:
        self.make = make

    def enqueuing(self, queue: str, body: Body) -> Body:
        made: Body = self.make(body)
        return made


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda body: None, r"Makes.enqueuing must return the body, .* not None\."),
        (lambda body: {"task": body.task}, "Makes.enqueuing must return the body"),
        (
            lambda body: msgspec.structs.replace(body, task="a:b"),
            r"Makes.enqueuing changed the task of a job from .*:plain to a:b; "
            r".*enqueue the other task instead",
        ),
        (lambda body: msgspec.structs.replace(body, timeout=0.0), "timeout must be more than 0"),
        (lambda body: msgspec.structs.replace(body, keep=-1.0), "keep must not be negative"),
        (lambda body: msgspec.structs.replace(body, keep=float("nan")), "keep must be a finite"),
    ],
)
def test_what_is_no_body_of_the_job_is_refused_by_the_middlewares_name(
    monkeypatch: pytest.MonkeyPatch, make: Callable[[Body], Any], text: str
) -> None:
    monkeypatch.setattr(middleware, "in_use", [Makes(make)])
    with pytest.raises(UsageError, match=text):
        Queue("mail").prepare(plain, [1])


def test_arguments_and_options_may_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    change = Makes(lambda body: msgspec.structs.replace(body, args=(2,), timeout=3.0, keep=0.0))
    monkeypatch.setattr(middleware, "in_use", [change])
    body = decode_body(Queue("mail").prepare(plain, [1]).body)
    assert (body.args, body.timeout, body.keep) == ([2], 3.0, 0.0)


def test_what_a_class_has_inherited_is_served_with_the_module_that_wrote_it(app: str) -> None:
    """Or a class of the application's would lend its name to `subprocess.Popen`."""
    served = TaskRegistry([app])
    assert served.function(f"{app}:Starts.fine")() == 1
    assert served.find(f"{app}:Settings").function.__name__ == "Settings"
    for name in ("Starts", "Starts.communicate", "Starts.__init__"):
        with pytest.raises(TaskNotFound, match=r"inherited from the module 'subprocess'|no public"):
            served.find(f"{app}:{name}")
    assert TaskRegistry([app, "subprocess"]).find(f"{app}:Starts.communicate")


# -- what is known of a task


def test_what_is_known_of_a_task_is_as_it_was_registered_last() -> None:
    before = known(plain)
    assert (before.name, before.defaults) == (f"{__name__}:plain", {})
    register(plain, {"priority": 7})
    assert known(plain).defaults == {"priority": 7}
    register(plain, {"priority": 8})
    assert known(plain).defaults == {"priority": 8}
    task._registered.clear()
    assert known(plain).defaults == {}


def test_an_object_whose_method_is_enqueued_is_not_kept() -> None:
    sender = Sender()
    gone = weakref.ref(sender)
    assert known(sender.send).name == f"{__name__}:Sender.send"
    del sender
    gc.collect()
    assert gone() is None


def test_a_name_of_rq_whose_class_is_not_served_says_which_module_to_serve() -> None:
    with pytest.raises(TaskNotFound, match=r"start the worker as `bide worker shop\.desk`,"):
        TaskRegistry().find("shop.desk.Desk.Drawer:close")
    with pytest.raises(TaskNotFound, match=r"start the worker as `bide worker json\.decoder`,"):
        TaskRegistry(["json"]).find("json.decoder:loads")


def test_under_djangos_manage_py_an_unserved_task_names_its_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["/srv/shop/manage.py", "bide", "worker"])
    with pytest.raises(TaskNotFound, match=r"as `manage\.py bide worker orders\.reminders`,"):
        TaskRegistry().find("orders.reminders:remind")
