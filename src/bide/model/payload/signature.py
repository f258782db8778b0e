"""The signature of a task: checked in the producer, and used for conversion in the worker.

The producer checks whether the call fits (`check`) and whether its objects will arrive as they are
(`check_records`), so that an impossible call is refused immediately, not an hour later in a worker.
The worker converts plain values to the annotated types (`bind`). Its errors distinguish a wrong
value from a call that no longer fits because the function has changed since the enqueue.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from bide.errors import PayloadError, UsageError
from bide.model.payload.convert import (
    Convert,
    Unfit,
    annotations_of,
    converter,
    hides_fields,
    holds_record,
    is_made_of,
    keeps_fields,
    objects_of_union,
    records_in,
    resolved,
)
from bide.model.payload.serializers import Codec, is_same, pack, unpack

_RESOURCE: Final = "__bide_resource__"
_ANY: Final = inspect.Parameter.empty
_MANY: Final = sys.maxsize


class _Records(NamedTuple):
    """The records that a parameter may hold."""

    plain: Set[Any]
    """Those that need no check, because they are no more than their fields."""
    hides_fields: bool
    """Whether one hides a part of itself."""


class _Converters(NamedTuple):
    positional: tuple[Convert | None, ...]
    rest: Convert | None
    by_name: dict[str, Convert | None]
    other: Convert | None
    result: Convert | None
    is_idle: bool
    """Whether no argument needs conversion."""
    records: dict[Convert, _Records]
    """Converters of parameters that may hold records, with these."""
    unions: dict[Convert, set[Any]]
    """Converters of parameters that are unions, with the members that JSON does not have."""


class Signature:
    """The parameters of one function."""

    positional: tuple[str, ...]
    """Names of the parameters that may be given by position, in order."""
    names: frozenset[str]
    """The declared parameters that a caller may pass by name."""
    injected: dict[str, Any]
    """The resources that the worker passes, by parameter; a job never contains one."""
    unresolved: tuple[str, ...]
    """Parameters whose annotations have unknown names; filled by `compile`."""
    has_records: bool
    """Whether a parameter takes a record or a union of objects; True before `compile`."""
    _function: Callable[..., Any]
    _owner: type | None
    _converters: _Converters | None

    @classmethod
    def of(cls, function: Callable[..., Any], owner: type | None = None) -> Signature:
        """Read a function's parameters; its annotations are looked up later, by `compile`.

        `owner` is the class in which it was looked up: the first argument of a plain method is then
        an object of that class.
        """
        self = cls.__new__(cls)
        self._function = function
        self._owner = owner if _takes_self(function, owner) else None
        self._converters = None
        self.unresolved = ()
        self.has_records = True
        self._read(*_described(function))
        return self

    def _read(self, parameters: list[inspect.Parameter], returns: Any, is_loose: bool) -> None:
        kinds = inspect.Parameter
        by_position = (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)
        self._parameters = parameters
        self._returns = returns
        self._is_loose = is_loose
        self._takes_any_name = any(p.kind is kinds.VAR_KEYWORD for p in parameters)
        self.injected = {
            p.name: resource
            for p in parameters
            if (resource := getattr(p.default, _RESOURCE, None)) is not None
        }
        listed = [p for p in parameters if p.kind in by_position]
        named = [p for p in parameters if p.kind is kinds.KEYWORD_ONLY]
        by_name = {p.name for p in (*listed, *named) if p.kind is not kinds.POSITIONAL_ONLY}
        self.names = frozenset(by_name - self.injected.keys())
        self.positional = tuple(p.name for p in listed)
        self._most = len(listed)
        if any(p.kind is kinds.VAR_POSITIONAL for p in parameters):
            self._most = _MANY
        for i, p in enumerate(listed):
            if p.name in self.injected:  # the parameters after it can only be passed by name
                self._most = min(self._most, i)
        required = [i for i, p in enumerate(listed) if p.default is _ANY]
        self._least = required[-1] + 1 if required else 0
        self._floor = sum(listed[i].kind is kinds.POSITIONAL_ONLY for i in required)
        if any(p.default is _ANY for p in named):
            self._least = _MANY
        # For each number of positional arguments: the required, allowed and forbidden names.
        self._names = []
        for given in range(len(listed) + 1):
            rest = [*listed[given:], *named]
            must = {p.name for p in rest if p.default is _ANY}
            may = {
                p.name
                for p in rest
                if p.kind is not kinds.POSITIONAL_ONLY and p.name not in self.injected
            }
            taken = {p.name for p in listed[:given] if p.kind is not kinds.POSITIONAL_ONLY}
            self._names.append((must, may, taken | self.injected.keys()))

    def fits(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call has the arguments that it needs, and no others."""
        given = len(args)
        if not self._floor <= given <= self._most:
            return False
        if not kwargs:
            return given >= self._least
        must, may, taken = self._names[min(given, len(self.positional))]
        names = kwargs.keys()
        if self._takes_any_name:
            return names >= must and names.isdisjoint(taken)
        return may >= names >= must

    def has_more(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call has an argument that the function, in this version, does not take."""
        is_outdated = not (self.fits(args, kwargs) or self._is_loose)
        return is_outdated and self._misfit(args, kwargs)[0] in ("many", "unknown")

    def check(
        self,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        task_name: str,
        options: Mapping[str, str] = MappingProxyType({}),
        where: str = "",
    ) -> None:
        """Check in the producer that the call fits.

        `options` are names that a caller may pass here by mistake, each with the right option, and
        `where` is how to give it.
        """
        if self.fits(args, kwargs) or self._is_loose:
            return
        kind, text = self._misfit(args, kwargs)
        given = [name for name in kwargs if name in options and name not in self.names]
        if kind == "unknown" and given:
            option = options[given[0]]
            text += f"; an option of the job is given as in {where.format(option)}"
        elif kind == "unknown" and not {"args", "kwargs"}.isdisjoint(kwargs.keys() - self.names):
            text += "; a list of arguments is given to queue.enqueue_call(function, args, kwargs)"
        raise UsageError(f"{task_name} {text}.")

    def check_records(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], task_name: str, codec: Codec
    ) -> None:
        """Check in the producer that records and members of unions will arrive as they are.

        Raises:
            PayloadError: the worker could not create an object again, or would create another one.
        """
        to = self._converters or self.compile()
        if not (to.records or to.unions) or codec == "pickle":  # a pickle holds the objects
            return
        given: list[tuple[str, Any, Convert | None]] = [
            *(
                (self.position(i), value, to.positional[i] if i < len(to.positional) else to.rest)
                for i, value in enumerate(args)
            ),
            *((name, value, to.by_name.get(name, to.other)) for name, value in kwargs.items()),
        ]
        for name, value, one in given:
            if one is None:
                continue
            why = fix = ""
            records = to.records.get(one)
            if records and not is_made_of(value, records.plain) and holds_record(value):
                why = _change(value, one, records.hides_fields, name, codec)
                fix = "pass plain values, or an object that its class creates again from its fields"
            elif type(value) in to.unions.get(one, ()):
                why = _other_member(value, one, codec)
                fix = f"put {type(value).__name__} first in the annotation, or use fewer types"
            if why:
                raise PayloadError(
                    f"argument {name!r} of {task_name} would not arrive as it is ({why}); {fix}."
                )

    def bind(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], task_name: str
    ) -> tuple[Sequence[Any], dict[str, Any]]:
        """Convert arguments to the annotated types, in the worker.

        Raises `PayloadError` if a value does not fit its annotation, or the call does not fit the
        function as this worker has it.
        """
        by_name = kwargs if type(kwargs) is dict else dict(kwargs)
        if not self.fits(args, by_name):
            if self._is_loose:
                return args, by_name
            raise PayloadError(self._outdated(args, by_name, task_name))
        to = self._converters or self.compile()
        if to.is_idle:
            return args, by_name
        where: int | str = 0
        try:
            if args:
                args = list(args)
                for where, value in enumerate(args):
                    one = to.positional[where] if where < len(to.positional) else to.rest
                    if one is not None:
                        args[where] = one(value)
            if by_name:
                by_name = dict(by_name)
                for name, value in by_name.items():
                    one = to.by_name.get(name, to.other)
                    if one is not None:
                        where = name
                        by_name[name] = one(value)
        except Exception as error:  # the code of a type may raise any error
            name = self.position(where) if isinstance(where, int) else where
            reason = _reason(error, name)
            raise PayloadError(f"argument {name!r} of {task_name}: {reason}.") from None
        return args, by_name

    def convert_result(self, value: Any) -> Any:
        """Convert a result to the annotated type; if that is not possible, return it unchanged."""
        to = self._converters or self.compile()
        if to.result is None:
            return value
        try:
            return to.result(value)
        except Exception:  # the code of a type may raise any error
            return value

    def position(self, i: int) -> str:
        """Return the name of a positional argument."""
        if i < len(self.positional):
            return self.positional[i]
        rest = [p.name for p in self._parameters if p.kind is inspect.Parameter.VAR_POSITIONAL]
        return f"{rest[0]}[{i - len(self.positional)}]" if rest else f"[{i}]"

    # -- calls that do not fit

    def _misfit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, str]:
        """Return the kind of mismatch, and the rest of a sentence after the task's name."""
        given = len(args)
        must, may, taken = self._names[min(given, len(self.positional))]
        known = [p.name for p in self._parameters]
        for name in (*self.positional[:given], *kwargs):
            if name in self.injected:
                return "injected", (
                    f"gets its argument {name!r} from the worker; leave it out, and pass those "
                    "after it by name"
                )
        for name in kwargs:
            if name in taken:
                return "twice", f"is given its argument {name!r} twice, by position and by name"
        if given > self._most:
            return "many", (
                f"takes {self._most} argument{'s' * (self._most != 1)} by position, "
                f"but {given} were given"
            )
        for name in kwargs:
            if name not in may and not self._takes_any_name:
                if name in known and name in self.positional:
                    return "by name", f"takes its argument {name!r} by position only"
                names = ", ".join(n for n in known if n in may)
                takes = f"it takes: {names}" if names else "it takes no other"
                return "unknown", f"takes no argument {name!r} ({takes})"
        if given < self._floor:
            must = {*self.positional[given : self._floor], *(must - kwargs.keys())}
        else:
            must = must - kwargs.keys()
        missing = [name for name in known if name in must]
        names = ", ".join(map(repr, missing))
        return "missing", f"needs its argument{'s' * (len(missing) > 1)} {names}"

    def _outdated(self, args: Sequence[Any], kwargs: Mapping[str, Any], task_name: str) -> str:
        kind, text = self._misfit(args, kwargs)
        if kind == "missing":
            advice = (
                "if the function got it after this job was enqueued, give it a default until "
                "such jobs are done"
            )
        else:
            advice = (
                "if the function lost it after this job was enqueued, keep it (with a default) "
                "until such jobs are done"
            )
        return f"{task_name} {text}; {advice}."

    # -- annotations

    def compile(self) -> _Converters:
        """Look up the annotations and their converters."""
        kinds = inspect.Parameter
        written = {p.name: p.annotation for p in self._parameters if p.annotation is not _ANY}
        if self._returns is not _ANY:
            written["return"] = self._returns
        hints = resolved(written, _names_around(self._function))
        self.unresolved = tuple(name for name in written if name not in hints)
        if self._owner is not None and self._parameters:
            hints.setdefault(self._parameters[0].name, self._owner)
        one = {p.name: _maybe(hints.get(p.name, Any), p.default) for p in self._parameters}
        unions: dict[Convert, set[Any]] = {
            convert: members
            for name, convert in one.items()
            if convert is not None and (members := objects_of_union(hints.get(name)))
        }
        records: dict[Convert, _Records] = {
            convert: found
            for name, convert in one.items()
            if convert is not None and (found := _records(hints.get(name)))
        }
        self.has_records = bool(records or unions)
        rest = other = None
        by_name: dict[str, Convert | None] = {}
        for p in self._parameters:
            if p.kind is kinds.VAR_POSITIONAL:
                rest = one.pop(p.name, None)
            elif p.kind is kinds.VAR_KEYWORD:
                other = one.pop(p.name, None)
                by_name |= _unpacked(hints.get(p.name))
            elif p.kind is not kinds.POSITIONAL_ONLY:
                by_name[p.name] = one.get(p.name)
        positional = tuple(one.get(name) for name in self.positional)
        result = _maybe(_awaited(hints.get("return", Any)), None)
        is_idle = not any((*positional, rest, other, *by_name.values()))
        self._converters = _Converters(
            positional, rest, by_name, other, result, is_idle, records, unions
        )
        return self._converters


def _change(value: Any, one: Convert, is_strict: bool, name: str, codec: Codec) -> str:
    """Return how a value would differ in the worker; empty if it would not."""
    try:
        plain = unpack(pack(value, codec), codec)
    except Exception:  # the encoder of the job names it
        return ""
    try:
        read = one(plain)
    except Exception as error:  # the code of a type may raise any error
        return _reason(error, name)
    if not holds_record(read):
        return f"it would arrive as {type(read).__name__}"
    fits = value == read if is_strict else is_same(value, read)
    return "" if fits else "its fields would be changed or lost"


def _other_member(value: Any, one: Convert, codec: Codec) -> str:
    """Return how the worker would get a member of a union; empty if it is of the same type."""
    try:
        read = one(unpack(pack(value, codec), codec))
    except Exception:  # the encoder of the job or the worker reports it
        return ""
    is_other = type(read) is not type(value) and read != value
    return f"it would arrive as {type(read).__name__}" if is_other else ""


def _reason(error: Exception, name: str) -> str:
    if isinstance(error, Unfit):
        return error.reason.rstrip(".") + (f" at {name}{error.path}" if error.path else "")
    return f"{type(error).__name__}: {' '.join(str(error).split())}".rstrip(".")


def _described(function: Any) -> tuple[list[inspect.Parameter], Any, bool]:
    """Return the parameters, the return type, and whether calls need not fit the parameters.

    A wrapper with `*args` or `**kwargs` may add or remove arguments before it calls the wrapped
    function. Then the parameters are those of the wrapped function, but calls need not fit them.
    """
    try:
        whole = _signature(function)
    except (TypeError, ValueError):  # some built-in functions have no signature
        anything = [
            inspect.Parameter("args", inspect.Parameter.VAR_POSITIONAL),
            inspect.Parameter("kwargs", inspect.Parameter.VAR_KEYWORD),
        ]
        return anything, _ANY, True
    is_loose = False
    if hasattr(function, "__wrapped__"):
        with suppress(TypeError, ValueError):  # of `functools.lru_cache`, which passes all on
            own = _signature(function, follow_wrapped=False).parameters.values()
            is_loose = any(
                p.kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
                for p in own
            )
    return list(whole.parameters.values()), whole.return_annotation, is_loose


def _signature(function: Any, follow_wrapped: bool = True) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        from annotationlib import Format

        return inspect.signature(
            function, follow_wrapped=follow_wrapped, annotation_format=Format.FORWARDREF
        )
    return inspect.signature(function, follow_wrapped=follow_wrapped)


def _takes_self(function: Any, owner: type | None) -> bool:
    if owner is None or not inspect.isfunction(function):
        return False
    found = inspect.getattr_static(owner, function.__name__, None)
    return not isinstance(found, staticmethod)


def _names_around(function: Any) -> dict[str, Any]:
    """Return the globals of the module that defines a function."""
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function, stop=lambda f: hasattr(f, "__signature__"))
    if not hasattr(function, "__globals__") and not inspect.ismethod(function):
        kind, called = (
            (function, "__init__") if isinstance(function, type) else (type(function), "__call__")
        )
        function = inspect.unwrap(getattr(kind, called))
    names: dict[str, Any] = getattr(function, "__globals__", {})
    return names


def _maybe(hint: Any, default: Any) -> Convert | None:
    """Return a converter for a hint; None if none is needed, or the hint is unknown."""
    try:
        one = converter(hint)
    except Exception:  # an annotation may be any object, and raise any error
        return None
    if one is not None and default is None:  # `name: str = None` means that None is allowed
        return lambda value: None if value is None else one(value)
    return one


def _records(hint: Any) -> _Records | None:
    """Return the records of an annotation; None if it has none."""
    try:
        found = records_in(hint)
        kinds = found - {typing.Union}
        plain = () if typing.Union in found else filter(keeps_fields, kinds)
        return _Records(frozenset(plain), any(map(hides_fields, kinds))) if kinds else None
    except Exception:  # an annotation may be any object, and raise any error
        return None


def _awaited(hint: Any) -> Any:
    """Return the type inside an awaitable return annotation of a plain function."""
    name = getattr(typing.get_origin(hint), "__name__", "")
    if name in ("Awaitable", "Coroutine", "Future", "Task"):
        return typing.get_args(hint)[-1]
    return hint


def _unpacked(hint: Any) -> dict[str, Convert | None]:
    if typing.get_origin(hint) is not typing.Unpack:
        return {}
    kind = typing.get_args(hint)[0]
    hints = resolved(annotations_of(kind), vars(sys.modules[kind.__module__]))
    return {name: _maybe(hint, ...) for name, hint in hints.items()}
