"""Exceptions as text: as Python's own `traceback` writes them, whatever they are."""

from __future__ import annotations

import traceback
from collections.abc import Callable

import pytest

from bide.model.payload import body
from bide.model.payload.body import format_error


class Broken(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def plain() -> None:
    raise ValueError("no\nsuch thing")


def silent() -> None:
    raise KeyError


def from_another() -> None:
    try:
        plain()
    except ValueError as error:
        raise OSError("broken") from error


def while_another() -> None:
    try:
        plain()
    except ValueError:
        raise OSError("broken")  # noqa: B904 - the point of it


def hiding_another() -> None:
    try:
        plain()
    except ValueError:
        raise OSError("broken") from None


def noted() -> None:
    error = ValueError("no")
    error.add_note("look there")
    raise error


def misspelt() -> None:
    import math

    math.sqroot(2)  # type: ignore[attr-defined]


def grouped() -> None:
    raise ExceptionGroup("both", [ValueError("a"), OSError("b")])


def deep(levels: int = 80) -> None:
    if levels:
        deep(levels - 1)
    plain()


def shallow() -> None:
    deep(20)


def chained_twice() -> None:
    try:
        from_another()
    except OSError as error:
        raise RuntimeError("no") from error


def broken() -> None:
    raise Broken


def homeless() -> None:
    kind = type("Homeless", (Exception,), {})
    kind.__module__ = None  # type: ignore[assignment]
    raise kind("no module")


def bad_syntax() -> None:
    compile("1 +", "typed", "eval")


@pytest.mark.parametrize(
    "raises",
    [
        plain,
        silent,
        from_another,
        while_another,
        hiding_another,
        noted,
        misspelt,
        grouped,
        deep,
        shallow,
        chained_twice,
        broken,
        homeless,
        bad_syntax,
    ],
)
def test_the_text_is_that_of_the_standard_library(raises: Callable[[], None]) -> None:
    for _ in range(2):  # made, and remembered
        with pytest.raises(Exception) as caught:  # noqa: PT011 - of any kind
            raises()
        error = caught.value
        assert format_error(error) == "".join(traceback.format_exception(error))


def test_one_that_was_not_raised_has_no_frames() -> None:
    assert format_error(ValueError("no")) == "ValueError: no\n"


def test_frames_are_remembered_up_to_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "_MOST_FRAMES", 3)
    for raises in (plain, silent, broken):
        with pytest.raises(Exception) as caught:  # noqa: PT011 - of any kind
            raises()
        format_error(caught.value)
    assert len(body._frames) <= 3
