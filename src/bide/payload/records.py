"""Types with named fields, alike: dataclasses, msgspec Structs, TypedDicts, named tuples."""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import msgspec


def is_record(kind: type) -> bool:
    """Whether a type is one of these."""
    return (
        dataclasses.is_dataclass(kind)
        or typing.is_typeddict(kind)
        or issubclass(kind, msgspec.Struct)
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    )


def fields_of(kind: Any) -> list[tuple[str, str, bool]]:
    """Each field of a record: its key as it is stored, its name, whether it is required."""
    if issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return [(field.encode_name, field.name, field.required) for field in fields]
    if dataclasses.is_dataclass(kind):
        absent = dataclasses.MISSING
        return [
            (field.name, field.name, field.default is absent and field.default_factory is absent)
            for field in dataclasses.fields(kind)
            if field.init
        ]
    if typing.is_typeddict(kind):
        return [(name, name, name in kind.__required_keys__) for name in kind.__annotations__]
    return [(name, name, name not in kind._field_defaults) for name in kind._fields]


def keys_of(kind: Any) -> set[str] | None:
    """The keys that a record, or a pydantic model, has a place for; None of what is neither."""
    kind = typing.get_origin(kind) or kind
    if not isinstance(kind, type):
        return None
    if hasattr(kind, "model_fields"):
        aliases = (getattr(field, "alias", None) for field in kind.model_fields.values())
        return {*kind.model_fields, *filter(None, aliases)}
    return {key for key, _, _ in fields_of(kind)} if is_record(kind) else None
