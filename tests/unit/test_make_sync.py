"""The blocking side of queues is what `docs/make_sync.py` makes of the awaited side."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

SCRIPT = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "make_sync.py"))
MODULES = [*SCRIPT["modules"]()]


@pytest.mark.parametrize(("source", "target"), MODULES, ids=[s.name for s, _ in MODULES])
def test_each_module_is_up_to_date(source: Path, target: Path) -> None:
    text = SCRIPT["generated"](source, target)
    assert text == target.read_text(), "run `make format`"
    assert text.startswith("# Generated")


def test_there_are_queues_and_delay_queues() -> None:
    targets = {target.relative_to(SCRIPT["SOURCE"]).as_posix() for _, target in MODULES}
    assert {"bide/queue/_sync/queue.py", "bide/queue/_sync/delay.py"} <= targets


def test_each_sentence_that_differs_is_said_somewhere() -> None:
    said = " ".join(" ".join(source.read_text().split()) for source, _ in MODULES)
    assert not [sentence for sentence in SCRIPT["SENTENCES"] if sentence.strip() not in said]


@pytest.mark.parametrize(
    ("awaited", "blocking"),
    [
        ("async def f(): ...\n", "def f(): ...\n"),
        ("return await self.f(x)\n", "return self.f(x)\n"),
        ("return (await self.f(x)[1].g())[0].y\n", "return self.f(x)[1].g()[0].y\n"),
        ("if (await f())():\n    pass\n", "if f()():\n    pass\n"),
        ("x = (await f(), 1)\n", "x = (f(), 1)\n"),
        ("x = g(await f())\n", "x = g(f())\n"),
        ("x = g()(await f())\n", "x = g()(f())\n"),
        ("[x async for x in y] + await f()\n", "[x for x in y] + f()\n"),
        (
            "async with AsyncQueue() as q:  # async\n    ...\n",
            "with Queue() as q:  # async\n    ...\n",
        ),
        ("raise StopAsyncIteration\n", "raise StopIteration\n"),
        ("x: Coroutine[Any, Any, R]\n", "x: Coroutine[Any, Any, R]\n"),
        (
            'def f():\n    """Use an `async with` block: `await queue.get()`."""\n',
            'def f():\n    """Use a `with` block: `queue.get()`."""\n',
        ),
    ],
)
def test_words_that_only_event_loops_need_go(awaited: str, blocking: str) -> None:
    assert SCRIPT["blocking"](awaited) == blocking


def test_a_paragraph_of_a_docstring_that_has_changed_is_wrapped_again() -> None:
    awaited = f'def f():\n    """Do it.\n\n    {"word " * 15}\n    AsyncQueue await x.\n    """\n'
    blocking = f'def f():\n    """Do it.\n\n    {"word " * 15}Queue x.\n    """\n'
    assert SCRIPT["blocking"](awaited) == blocking


def test_code_that_needs_asyncio_is_refused() -> None:
    with pytest.raises(ValueError, match=r"belongs in bide/queue/loops\.py"):
        SCRIPT["blocking"]("asyncio.sleep(1)\n")
