"""Tasks that go by a name they were given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bide import AsyncQueue, Queue
from bide.errors import TaskNotFound, UsageError
from bide.model.payload.body import decode_body
from bide.tasks import task
from bide.tasks.registry import task_name
from bide.tasks.task import TaskRegistry, import_task, register

KINDS = [Queue, AsyncQueue]
Kind = type[Queue] | type[AsyncQueue]


def send(n: int = 0) -> int:
    return n


def other(n: int = 0) -> int:
    return n


@pytest.fixture(autouse=True)
def _nothing_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_registered", {})


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    found: Kind = request.param
    return found


@pytest.fixture
def mail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    (tmp_path / "mail_for_tests.py").write_text(
        "import bide\nqueue = bide.Queue('outbox')\n"
        "@queue.task(name='send_email')\ndef send(to): return to\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "mail_for_tests"
    import sys

    sys.modules.pop("mail_for_tests", None)


def test_a_task_is_enqueued_and_found_by_the_name_it_was_given(kind: Kind) -> None:
    queue = kind("mail")
    named: Any = queue.task(name="send_email", timeout=7)(send)
    assert (named.name, named(3), repr(named).split()[1]) == ("send_email", 3, "send_email")
    for job in (
        named.prepare(1),
        named.options(priority=9).prepare(1),
        named.later(5).prepare(1),
        queue.prepare(named, [1]),
        queue.prepare("send_email", [1]),
    ):
        assert decode_body(job.body).task == "send_email"
    target = TaskRegistry().find("send_email")
    assert (target.function, target.policy.timeout) == (send, 7.0)


def test_its_arguments_are_checked_where_the_process_has_it_and_only_there(kind: Kind) -> None:
    queue = kind("mail")
    queue.prepare("send_email", [1, 2, 3])
    queue.task(name="send_email")(send)
    with pytest.raises(UsageError, match="send_email"):
        queue.prepare("send_email", [1, 2, 3])


def test_the_function_itself_goes_by_its_own_name(kind: Kind) -> None:
    queue = kind("mail")
    queue.task(name="send_email")(send)
    assert decode_body(queue.prepare(send).body).task == f"{__name__}:send"
    with pytest.raises(TaskNotFound):
        TaskRegistry().find(f"{__name__}:send")


@pytest.mark.parametrize("function", [lambda n: n, partial(send, 1)], ids=["lambda", "partial"])
def test_what_has_no_name_of_its_own_can_be_given_one(
    kind: Kind, function: Callable[..., Any]
) -> None:
    named: Any = kind("mail").task(name="count")(function)
    named.prepare(*([] if isinstance(function, partial) else [1]))
    assert TaskRegistry().find("count").function is function
    assert "count" in repr(named)


def test_as_a_callback_too(kind: Kind) -> None:
    queue = kind("mail")
    told: Any = queue.task(name="told")(other)
    body = decode_body(queue.prepare(send, on_success=told, on_failure="told").body)
    assert (body.on_success, body.on_failure) == ("told", "told")


@pytest.mark.parametrize("again", KINDS)
def test_a_task_of_another_queue_too_keeps_its_name(kind: Kind, again: Kind) -> None:
    first: Any = kind("mail").task(name="send_email")(send)
    second: Any = again("bulk").task(first)
    assert (second.name, second.queue.name) == ("send_email", "bulk")
    assert decode_body(second.prepare(1).body).task == "send_email"


def test_a_name_that_another_has_is_refused_by_whoever_comes_second(kind: Kind) -> None:
    queue = kind("mail")
    queue.task(name="send_email")(send)
    taken = f"'send_email' is the name of {__name__}:send already; give {__name__}:other another"
    with pytest.raises(UsageError, match=taken):
        queue.task(name="send_email")(other)
    assert TaskRegistry().find("send_email").function is send


def test_a_module_that_is_loaded_again_has_the_same_functions(kind: Kind) -> None:
    def reload(module: str) -> Callable[[], None]:
        def send() -> None: ...

        send.__module__, send.__qualname__ = module, "send"
        return send

    for module in ("app", "app", "__main__", "app"):
        function = reload(module)
        kind("mail").task(name="send_email")(function)
        assert TaskRegistry().find("send_email").function is function


def test_a_function_of_the_program_does_not_replace_one_of_a_module_in_silence(kind: Kind) -> None:
    """Both are `send`, and one is in `__main__`; but they are two files."""

    def read(module: str, file: str) -> Any:
        space: dict[str, Any] = {"__name__": module}
        exec(compile("def send(to): ...", file, "exec"), space)
        return space["send"]

    kind("mail").task(name="send_email")(read("shop", "/src/shop.py"))
    with pytest.raises(UsageError, match="'send_email' is the name of shop:send already"):
        kind("mail").task(name="send_email")(read("__main__", "/src/script.py"))
    kind("mail").task(name="send_email")(read("__main__", "/src/shop.py"))


@pytest.mark.parametrize("name", ["", "a:b", "a b", "a.b", "1st", "x\n", 5, True, b"send"])
def test_a_name_that_cannot_be_one_is_refused_with_the_form(kind: Kind, name: Any) -> None:
    with pytest.raises(UsageError, match="name must be a word of letters"):
        kind("mail").task(name=name)(send)


@pytest.mark.parametrize("odd", [5, "send", None])
def test_only_a_function_can_be_given_one(odd: Any) -> None:
    with pytest.raises(UsageError, match="is not a function"):
        register(odd, None, "send_email")


@pytest.mark.parametrize("name", ["sned_email", "", "a b", "x\n", "send.email", "<script>"])
def test_a_name_that_nobody_has_is_an_error_that_lists_those_that_there_are(name: str) -> None:
    with pytest.raises(TaskNotFound) as caught:
        TaskRegistry().find(name)
    assert f"No task is named {name!r} here (there are: none)" in str(caught.value)
    for n in range(30):
        register(lambda: None, None, f"task{n:02d}")
    with pytest.raises(TaskNotFound, match=r"there are: task00, task01, .*task19\); give a func"):
        TaskRegistry().find(name)


def test_the_most_similar_name_is_suggested(mail: str) -> None:
    for name in ("send_email", "send_fax"):
        register(lambda: None, None, name)
    with pytest.raises(TaskNotFound, match=r"\(there are: .*; did you mean 'send_email'\?\); give"):
        TaskRegistry().find("sned_email")
    with pytest.raises(TaskNotFound) as caught:
        TaskRegistry().find("archive")
    assert "did you mean" not in str(caught.value)
    task._registered.clear()
    with pytest.raises(TaskNotFound, match=r"mail_for_tests; did you mean 'send_email'\?\); set"):
        import_task("sendemail", [mail])


def test_a_person_may_type_the_name_of_a_task_of_modules_that_are_known(mail: str) -> None:
    found: Any = import_task("send_email", [mail])
    assert (found("ann"), found.queue.name) == ("ann", "outbox")
    with pytest.raises(TaskNotFound, match=r"'x' in the modules of .* \(mail_for_tests\); set"):
        import_task("x", [mail])
    assert task_name("x") == "x"
