"""Returns for an annotation the function that converts plain values to the annotated type.

msgspec converts nearly all types, and quickly. A slower converter handles types that msgspec cannot
express (unions of two types that are both encoded as text) and values that are objects already
(from a pickle): it converts the parts of containers and records separately, and tries the members
of a union in order. If neither knows an annotation, the value stays unchanged.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import inspect
import re
import sys
import threading
import types
import typing
from collections import abc, deque
from collections.abc import Callable, Set
from contextlib import suppress
from pathlib import PurePath
from typing import Any, Final, NamedTuple

import msgspec

from bide.model.payload.serializers import simplify, told

_QUALIFIERS: Final = ("Required", "NotRequired", "ReadOnly", "Final", "ClassVar")


def annotations_of(source: Any) -> dict[str, Any]:
    """Return the annotations of a class or function as written, without looking names up."""
    if sys.version_info >= (3, 14):
        import annotationlib

        return annotationlib.get_annotations(source, format=annotationlib.Format.FORWARDREF)
    return inspect.get_annotations(source)


def resolved(
    annotations: dict[str, Any], names: dict[str, Any], local: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Look up the names in annotations; leave out annotations with unknown names.

    `names` are those of the module; `local` comes before it.
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
    """Remove the parts of a hint that do not affect values: names, qualifiers, metadata."""
    while True:
        if isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif isinstance(hint, dataclasses.InitVar):
            hint = hint.type
        elif hint is None:
            return type(None)
        elif type(hint).__name__ == "TypeAliasType":  # `type Ids = list[int]`, Python 3.12
            hint = hint.__value__
        elif isinstance(hint, typing.TypeVar) and (hint.__bound__ or hint.__constraints__):
            hint = hint.__bound__ or typing.Union[hint.__constraints__]  # noqa: UP007
        elif typing.get_origin(hint) is typing.Annotated:
            plain, *notes = typing.get_args(hint)
            if any(isinstance(note, msgspec.Meta) for note in notes):
                return hint
            hint = plain
        elif getattr(typing.get_origin(hint), "_name", None) in _QUALIFIERS:
            hint = typing.get_args(hint)[0]
        else:
            return hint


def is_record(kind: type) -> bool:
    """Whether a type is a dataclass, an attrs class, a struct, a named tuple or a TypedDict."""
    return (
        dataclasses.is_dataclass(kind)
        or hasattr(kind, "__attrs_attrs__")
        or typing.is_typeddict(kind)
        or issubclass(kind, msgspec.Struct)
        or (issubclass(kind, tuple) and hasattr(kind, "_fields"))
    )


def fields_of(kind: Any) -> list[tuple[str, str, bool]]:
    """Return each field of a record: its stored key, its name, and whether it is required."""
    if issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return [(field.encode_name, field.name, field.required) for field in fields]
    if dataclasses.is_dataclass(kind):
        absent = dataclasses.MISSING
        return [
            (
                field.name,
                field.name,
                field.init and field.default is absent and field.default_factory is absent,
            )
            for field in dataclasses.fields(kind)
        ]
    if hasattr(kind, "__attrs_attrs__"):
        absent = sys.modules["attr"].NOTHING
        return [
            (
                field.name,
                field.alias if field.init else field.name,
                field.init and field.default is absent,
            )
            for field in kind.__attrs_attrs__
        ]
    if typing.is_typeddict(kind):
        return [(name, name, name in kind.__required_keys__) for name in kind.__annotations__]
    return [(name, name, name not in kind._field_defaults) for name in kind._fields]


def keys_of(kind: Any) -> set[str] | None:
    """Return the keys that a record or a pydantic model accepts; None for other types."""
    kind = typing.get_origin(kind) or kind
    if not isinstance(kind, type):
        return None
    if hasattr(kind, "model_fields"):
        aliases = (getattr(field, "alias", None) for field in kind.model_fields.values())
        return {*kind.model_fields, *filter(None, aliases)}
    if not is_record(kind):
        return None
    return {*filter(None, _tag_of(kind)[:1]), *(key for key, _, _ in fields_of(kind))}


def _tag_of(kind: Any) -> tuple[str | None, Any]:
    """Return the key and the value that tell a struct from others of its union."""
    config = getattr(kind, "__struct_config__", None)
    return (config.tag_field, config.tag) if config else (None, None)


def _set_after(kind: Any) -> set[str]:
    """Return the fields that are not arguments of a record's class."""
    fields = getattr(kind, "__attrs_attrs__", ())
    if dataclasses.is_dataclass(kind):
        fields = dataclasses.fields(kind)
    return {field.name for field in fields if not field.init}


def records_in(hint: Any, seen: set[Any] | None = None) -> set[Any]:
    """Return the records and models of an annotation, also those in fields.

    `typing.Union` is among them if there is a union of more than one type and None.
    """
    seen = set() if seen is None else seen
    hint = peeled(hint)
    if len(_kinds_of_union(hint) - {type(None)}) > 1:
        seen.add(typing.Union)
    for part in typing.get_args(hint):
        records_in(part, seen)
    kind = typing.get_origin(hint) or hint
    if isinstance(kind, type) and kind not in seen and (is_record(kind) or _is_model(kind)):
        seen.add(kind)
        for part in _hints_of(kind).values():
            records_in(part, seen)
    return seen


def holds_record(value: Any) -> bool:
    """Whether a value is, or its containers hold, an object of a record or a model."""
    if isinstance(value, dict):
        return any(map(holds_record, value.values()))
    if type(value) in _CONTAINERS:
        return any(map(holds_record, value))
    return is_record(type(value)) or _is_model(type(value))


def objects_of_union(hint: Any) -> set[Any]:
    """Return the members of a union that are no plain types, if it has other members than None."""
    members = _kinds_of_union(peeled(hint))
    return members - set(_PLAIN) if len(members - {type(None)}) > 1 else set()


def _kinds_of_union(hint: Any) -> set[Any]:
    """Return the members of a union, without their parameters."""
    if typing.get_origin(hint) not in (typing.Union, types.UnionType):
        return set()
    return {typing.get_origin(kind) or kind for kind in map(peeled, typing.get_args(hint))}


def keeps_fields(kind: Any) -> bool:
    """Whether an object is no more than its fields: one that is created from them is the same."""
    if dataclasses.is_dataclass(kind):
        names = [field.name for field in dataclasses.fields(kind)]
        parameters = inspect.signature(typing.cast("Any", kind)).parameters
        return not hasattr(kind, "__post_init__") and names == list(parameters)
    return isinstance(kind, type) and issubclass(kind, tuple)


def is_made_of(value: Any, kinds: Set[Any]) -> bool:
    """Whether all objects in a value are plain, or of these classes, which keep their fields."""
    kind = type(value)
    if kind in kinds:
        if issubclass(kind, tuple):
            return all(is_made_of(part, kinds) for part in value)
        fields = dataclasses.fields(kind)
        return all(is_made_of(getattr(value, field.name), kinds) for field in fields)
    if kind is dict:
        return all(is_made_of(part, kinds) for part in value.values())
    if kind in _CONTAINERS:
        return all(is_made_of(part, kinds) for part in value)
    return kind in _PLAIN or not (is_record(kind) or _is_model(kind))


def hides_fields(kind: Any) -> bool:
    """Whether msgspec encodes only a part of its objects: private attributes of attrs."""
    return any(field.name.startswith("_") for field in getattr(kind, "__attrs_attrs__", ()))


def _hints_of(kind: Any) -> dict[str, Any]:
    """Return the resolved annotations of a class and of its bases."""
    hints: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        names = vars(sys.modules.get(base.__module__, typing))
        hints |= resolved(annotations_of(base), names, dict(vars(base)))
    return hints


Convert = Callable[[Any], Any]
"""Raises `Unfit`."""


class Unfit(Exception):
    """A value does not have the annotated type."""

    def __init__(self, reason: str, path: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.path = path
        """The path to the wrong part: `[0].id`."""


_PLAIN: Final = (str, int, float, bool, list, dict, type(None))
_CONTAINERS: Final = (list, tuple, set, frozenset, deque)
_LISTS: Final[dict[Any, type]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    deque: deque,
    abc.Sequence: list,
    abc.MutableSequence: list,
    abc.Collection: list,
    abc.Iterable: list,
    abc.Set: set,
    abc.MutableSet: set,
}
_DICTS: Final = (dict, abc.Mapping, abc.MutableMapping)
_AS_KEY: Final = " as a key"
_WHERE: Final = re.compile(r"(.*) - at (`key` in )?`\$\[0\](.*?)`", re.DOTALL)


def converter(hint: Any) -> Convert | None:
    """Return a converter for a hint with resolved names; None if no conversion is needed."""
    hint = peeled(hint)
    if hint is Any or hint is object or isinstance(hint, typing.TypeVar | typing.ForwardRef):
        return None
    if hint in (str, int, float, bool, bytes):
        return _scalar(hint)
    return _native(hint) if _msgspec_knows(hint) else _by_parts(hint)


# -- types that msgspec converts


def _scalar(kind: type) -> Convert:
    slow = _native(kind)
    kinds = (kind, bool) if kind in (int, float) else (kind,)  # in Python a bool is an int
    return lambda value: value if type(value) in kinds else slow(value)


def _native(hint: Any, whole: bool = False) -> Convert:
    """Convert by msgspec; if it refuses, convert by parts, unless `whole` is set."""
    # With a struct around the hint, msgspec caches its analysis of the hint.
    holder: Any = msgspec.defstruct("Holder", [("value", hint)], array_like=True)
    parts: list[Convert | None] = []

    def convert(value: Any) -> Any:
        try:
            return msgspec.convert([value], holder, str_keys=True, dec_hook=_revive).value
        except msgspec.ValidationError as error:
            # It may contain objects of the right type, which msgspec treats as plain values.
            if not parts:
                parts.append(None if whole else _by_parts(hint, known=True))
            if parts[0] is not None:
                with suppress(Unfit):
                    return parts[0](value)
            raise _unfit(error) from None

    return convert


def _unfit(error: Exception) -> Unfit:
    text = str(error)
    where = _WHERE.fullmatch(text)
    if where is None:
        return Unfit(text)
    return Unfit(where[1] + _AS_KEY if where[2] else where[1], where[3])


def _revive(kind: Any, value: Any) -> Any:
    """Convert the output of `simplify` back to a type that msgspec does not know."""
    if not isinstance(kind, type) or isinstance(value, kind):
        return value
    if issubclass(kind, PurePath) and isinstance(value, str):
        return kind(value)
    if _is_model(kind):
        return _model(kind, value)
    raise TypeError(f"Expected `{kind.__name__}`, got `{type(value).__name__}`")


def _is_model(kind: type) -> bool:
    """Whether it looks like a pydantic model."""
    return callable(getattr(kind, "model_validate", None))


def _model(kind: Any, value: Any) -> Any:
    """Convert to a model by its rules for JSON, because it was encoded as JSON."""
    try:
        if not hasattr(kind, "model_validate_json"):
            return kind.model_validate(value)
        return kind.model_validate_json(_written(value))
    except Exception as error:
        raise TypeError(told(error)) from None


def _msgspec_knows(hint: Any) -> bool:
    """Whether msgspec, with `_revive`, converts all parts of a hint."""
    try:
        return _all_known(msgspec.inspect.type_info(hint), set())
    except Exception:  # TypeError for types that it cannot express, NameError in a class, ...
        return False


def _all_known(info: Any, seen: set[int]) -> bool:
    if id(info) in seen:
        return True
    seen.add(id(info))
    if isinstance(info, msgspec.inspect.CustomType):
        return info.cls is object or issubclass(info.cls, PurePath) or _is_model(info.cls)
    if isinstance(info, msgspec.inspect.DictType) and isinstance(
        info.key_type, msgspec.inspect.CustomType
    ):
        return False  # msgspec revives no keys
    if isinstance(info, msgspec.inspect.CollectionType | msgspec.inspect.Type):
        return all(_all_known(part, seen) for part in _parts_of(info))
    return True


def _parts_of(info: Any) -> list[Any]:
    found: list[Any] = []
    for name in info.__struct_fields__:
        part = getattr(info, name)
        if isinstance(part, msgspec.inspect.Type):
            found.append(part)
        elif isinstance(part, tuple):
            found += [getattr(p, "type", p) for p in part]
    return [part for part in found if isinstance(part, msgspec.inspect.Type)]


# -- types that are converted by parts


def _by_parts(hint: Any, known: bool = False) -> Convert | None:
    """Convert by parts; `known`: msgspec knows the hint, so it is not tried again."""
    origin = typing.get_origin(hint)
    args = typing.get_args(hint)
    kind = origin or hint
    if origin in (typing.Union, types.UnionType):
        return _union(hint, args)
    if kind is tuple:
        return _tuple(args)
    if kind in _LISTS:
        return _list(_LISTS[kind], converter(args[0]) if args else None)
    if kind in _DICTS:
        return _dict(args)
    if not isinstance(kind, type):
        return None
    if issubclass(kind, enum.Enum):
        return _enum(kind)
    if is_record(kind):
        return _record(hint)
    return _instance(kind) if known else None


def _instance(kind: type) -> Convert:
    # In Python a `datetime` is a `date`.
    moment = converter(datetime.datetime) if kind is datetime.date else None

    def convert(value: Any) -> Any:
        if isinstance(value, kind) and type(value) not in _PLAIN:
            return value
        if moment is not None:
            return moment(value)
        raise _expected(kind, value)

    return convert


def _expected(hint: Any, value: Any) -> Unfit:
    name = hint.__name__ if isinstance(hint, type) else str(hint).replace("typing.", "")
    return Unfit(f"Expected `{name}`, got `{type(value).__name__}`")


def _union(hint: Any, members: tuple[Any, ...]) -> Convert:
    """Try the members in order; a record that lacks a key comes after one that has it."""
    tried = [(member, converter(member)) for member in map(peeled, members)]
    kinds = tuple(typing.get_origin(member) or member for member, _ in tried)
    records = [keys_of(member) for member, _ in tried]

    def convert(value: Any) -> Any:
        if value is None and type(None) in kinds:
            return None
        if type(value) not in _PLAIN and type(value) in kinds:
            return value
        order = tried
        if isinstance(value, dict):
            last = [keys is not None and not value.keys() <= keys for keys in records]
            order = [tried[i] for i in sorted(range(len(tried)), key=last.__getitem__)]
        for _, one in order:
            with suppress(Unfit):
                return value if one is None else one(value)
        raise _expected(hint, value)

    return convert


def _tuple(args: tuple[Any, ...]) -> Convert:
    if not args or (len(args) == 2 and args[1] is ...):
        return _list(tuple, converter(args[0]) if args else None)
    each = [converter(arg) for arg in args]

    def convert(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _expected(tuple, value)
        if len(value) != len(each):
            raise Unfit(f"Expected {len(each)} items, got {len(value)}")
        return tuple(
            _within(f"[{i}]", one, item)
            for i, (one, item) in enumerate(zip(each, value, strict=True))
        )

    return convert


def _list(kind: type, one: Convert | None) -> Convert:
    def convert(value: Any) -> Any:
        if not isinstance(value, list | tuple | set | frozenset | deque):
            raise _expected(kind, value)
        return kind(_within(f"[{i}]", one, item) for i, item in enumerate(value))

    return convert


def _dict(args: tuple[Any, ...]) -> Convert:
    key_hint, value_hint = args or (Any, Any)
    name, one = _key(key_hint), converter(value_hint)

    def convert(value: Any) -> Any:
        if not isinstance(value, abc.Mapping):
            raise _expected(dict, value)
        return {name(key): _within(f"[{key!r}]", one, item) for key, item in value.items()}

    return convert


def _key(hint: Any) -> Convert:
    """Convert a key; JSON keys are always text, so the text may be a number."""
    one = converter(hint)
    if one is None:
        return lambda key: key
    in_text = _native(dict[hint, None], whole=True) if _msgspec_knows(dict[hint, None]) else None
    members = _members(hint) if in_text is None else {}

    def convert(key: Any) -> Any:
        if isinstance(key, str) and key in members:
            return members[key]
        try:
            if in_text is not None and isinstance(key, str):
                return next(iter(in_text({key: None})))
            return one(key)
        except Unfit as error:
            raise Unfit(error.reason.removesuffix(_AS_KEY) + _AS_KEY) from None

    return convert


def _members(hint: Any) -> dict[str, Any]:
    """Return the members of an enum by the text of their values."""
    found: dict[str, Any] = {}
    members: Any = hint if isinstance(hint, enum.EnumMeta) else ()
    for member in members:
        with suppress(Exception):  # a value that does not fit cannot be a key
            found[_written(member.value).decode().strip('"')] = member
    return found


def _within(path: str, one: Convert | None, value: Any) -> Any:
    if one is None:
        return value
    try:
        return one(value)
    except Unfit as error:
        raise Unfit(error.reason, path + error.path) from None


def _enum(kind: Any) -> Convert:
    """Convert an enum by its value; msgspec only knows enums of text or integers."""

    def convert(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if issubclass(kind, enum.Flag) and type(value) is int:
            try:
                return kind(value)
            except ValueError as error:
                raise Unfit(str(error)) from None
        written = _written(value)
        for member in kind:
            if _written(member.value) == written:
                return member
        raise Unfit(f"Invalid enum value {value!r}")

    return convert


def _written(value: Any) -> bytes:
    return msgspec.json.encode(value, enc_hook=simplify)


class _Field(NamedTuple):
    key: str
    """Its stored name."""
    name: str
    one: Convert | None
    required: bool


_being_made: Final[dict[Any, list[Convert]]] = {}
"""Records whose converters are being created; a recursive record finds its own here."""
_making: Final = threading.RLock()


def _record(hint: Any) -> Convert:
    with _making:
        if hint in _being_made:
            made = _being_made[hint]
            return lambda value: made[0](value)
        _being_made[hint] = made = []
        try:
            made.append(_record_of(hint))
        finally:
            del _being_made[hint]
        return made[0]


def _filled(hint: Any, given: dict[Any, Any]) -> Any:
    """Replace the type variables of a generic class."""
    free = getattr(hint, "__parameters__", ())
    if given and free and typing.get_origin(hint) is not None:
        return hint[tuple(given.get(variable, variable) for variable in free)]
    return given.get(hint, hint) if isinstance(hint, typing.TypeVar) else hint


def _record_of(hint: Any) -> Convert:
    kind = typing.get_origin(hint) or hint
    given = dict(zip(getattr(kind, "__parameters__", ()), typing.get_args(hint), strict=False))
    hints = _hints_of(kind)
    fields = [
        _Field(key, name, converter(_filled(hints.get(name, hints.get(key, Any)), given)), required)
        for key, name, required in fields_of(kind)
    ]
    is_dict = typing.is_typeddict(kind)
    is_list = issubclass(kind, tuple) or (
        issubclass(kind, msgspec.Struct) and kind.__struct_config__.array_like
    )
    tag_key, tag = _tag_of(kind)
    keys = [*filter(None, [tag_key]), *(field.key for field in fields)]
    set_after = _set_after(kind)

    def convert(value: Any) -> Any:
        if not is_dict and isinstance(value, kind):
            return value
        if is_list and isinstance(value, list | tuple):
            if len(value) > len(keys):
                raise Unfit(f"Expected at most {len(keys)} items, got {len(value)}")
            value = dict(zip(keys, value, strict=False))
        if not isinstance(value, dict):
            raise _expected(kind, value)
        if tag_key is not None and value.get(tag_key, tag) != tag:
            raise Unfit(f"Invalid value {value[tag_key]!r}", f".{tag_key}")
        made = {}
        for field in fields:
            if field.key in value:
                made[field.name] = _within(f".{field.key}", field.one, value[field.key])
            elif field.required:
                raise Unfit(f"Object missing required field `{field.key}`")
        later = {name: made.pop(name) for name in set_after & made.keys()}
        try:
            record = kind(**made)
        except (TypeError, ValueError) as error:  # its own __post_init__ refuses it
            raise Unfit(str(error)) from None
        for name, part in later.items():
            object.__setattr__(record, name, part)
        return record

    return convert
