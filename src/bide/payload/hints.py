"""Annotations: read as they are written, their names looked up, what says nothing taken off."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from contextlib import suppress
from typing import Any, Final

import msgspec

_QUALIFIERS: Final = ("Required", "NotRequired", "ReadOnly", "Final", "ClassVar")


def annotations_of(source: Any) -> dict[str, Any]:
    """What a class or function says of itself, as it is written: nothing is looked up yet."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(source, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(source)


def resolved(
    annotations: dict[str, Any], names: dict[str, Any], local: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Look up the names in annotations; one that leads nowhere is left out, and spoils no other.

    Args:
        annotations: types, or text as `from __future__ import annotations` leaves it.
        names: what the module they were written in has.
        local: what comes before it.
    """

    def probe() -> None: ...

    def look_up(some: dict[str, Any]) -> dict[str, Any]:
        probe.__annotations__ = some
        return typing.get_type_hints(probe, names, local, include_extras=True)

    try:
        return look_up(annotations)
    except Exception:  # evaluating an annotation may raise anything
        found: dict[str, Any] = {}
        for name, annotation in annotations.items():
            with suppress(Exception):
                found |= look_up({name: annotation})
        return found


def peeled(hint: Any) -> Any:
    """Take off what does not matter to a value: names, qualifiers, notes to others."""
    while True:
        if isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif isinstance(hint, dataclasses.InitVar):
            hint = hint.type
        elif hint is None:
            return type(None)
        elif type(hint).__name__ == "TypeAliasType":  # `type Ids = list[int]`, Python 3.12
            hint = hint.__value__
        elif typing.get_origin(hint) is typing.Annotated:
            if any(isinstance(note, msgspec.Meta) for note in hint.__metadata__):
                return hint
            hint = hint.__origin__
        elif getattr(typing.get_origin(hint), "_name", None) in _QUALIFIERS:
            hint = typing.get_args(hint)[0]
        else:
            return hint
