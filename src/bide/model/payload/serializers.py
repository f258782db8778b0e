r"""Converts values to bytes and back: JSON, msgpack, and pickle if it is chosen.

JSON and msgpack contain plain values, and never the name of a class. Other values (a dataclass, a
`datetime`, a pydantic model) are encoded in their usual plain form, and the annotations of the task
convert them back (`convert.py`). A pickle contains objects, and reading it can run any code, so it
is read only if that is allowed.

The body of a batch job contains the bodies of its calls, one after another. Each consists of a byte
with which no other body starts, its length in digits, a newline, and the body as its client sent
it, with its signature if it has one:

    \x06 38\n{"task":"app.tasks:index","args":[42]} ...     (without the space)

So a script appends a call without parsing it, and each call has its own signature. Each call also
has its own codec: during a change of codec, producers of both codecs add to the same batch.
"""

from __future__ import annotations

import inspect
import math
import pickle
import re
from collections import deque
from collections.abc import Callable, Sequence
from datetime import date, datetime
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import msgspec

from bide.errors import PayloadError

if TYPE_CHECKING:
    from bide.model.payload.body import Body, Envelope

Codec = Literal["json", "msgpack", "pickle"]
CODECS: Final[tuple[Codec, ...]] = get_args(Codec)
PICKLE_PROTOCOL: Final = 5

NOT_FINITE: Final = "a NaN or an infinity, which JSON does not have; use None or text"
ADVICE: Final = "pass plain values (numbers, text, lists, dicts), or an id to look the rest up by"

_MODEL_ADVICE: Final = (
    "give each field one alias= and a type that JSON has, without exclude=, or pass plain values"
)


# Their defaults hold the real classes, which libraries for tests of time replace in modules.
def _moment(value: datetime, kind: type[datetime] = datetime) -> datetime:
    return kind.combine(value.date(), value.timetz())


def _day(value: date, kind: type[date] = date) -> date:
    return kind.fromordinal(value.toordinal())


_BASES: Final[tuple[tuple[type, Callable[[Any], Any]], ...]] = (
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (datetime, _moment),
    (date, _day),
)
"""Types whose subclasses the encoders do not know, and how to copy a value to the type itself."""


def simplify(value: Any) -> Any:
    """Return the plain form of a value that the encoders do not know, or raise `TypeError`."""
    kind = type(value)
    if kind is str:  # msgspec before 0.22 passes the text of an enum member that is a key
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, deque):
        return list(value)
    if inspect.iscoroutine(value):
        value.close()  # otherwise Python would warn about it in another place
        raise PayloadError(
            "holds a coroutine; write await before the call that returned it, in an async def task."
        )
    if callable(getattr(kind, "model_dump", None)):  # it looks like a pydantic model
        return _dumped(value)
    for base, plain_of in _BASES:
        if issubclass(kind, base) and kind is not bool:
            plain = plain_of(value)
            if plain == value:  # a subclass of datetime may count nanoseconds
                return plain
    raise TypeError(f"objects of type {kind.__qualname__} do not fit")


def _dumped(model: Any) -> Any:
    """Return the plain form of a pydantic model; refuse a model that the worker would change."""
    kind = type(model)
    plain = model.model_dump(mode="json", by_alias=True, round_trip=True)
    if not _is_finite(plain):
        raise PayloadError(f"holds {NOT_FINITE}.")
    if not hasattr(kind, "model_validate_json"):
        return plain
    try:
        again = kind.model_validate_json(msgspec.json.encode(plain))
    except Exception as error:
        why = f"{kind.__qualname__} cannot be read back from its JSON ({told(error)})"
        raise PayloadError(f"{why}; {_MODEL_ADVICE}.") from None
    read = _fields(again)
    for name, value in _fields(model).items():
        if name not in read or not is_same(value, read[name]):
            raise PayloadError(
                f"field {name!r} of {kind.__qualname__} is lost or changed when the model is read "
                f"back from its JSON; {_MODEL_ADVICE}."
            )
    return plain


def _fields(model: Any) -> dict[str, Any]:
    """Return the fields of a pydantic model, without private attributes and cached properties."""
    known, extra = type(model).model_fields, model.__pydantic_extra__ or {}
    return {name: value for name, value in vars(model).items() if name in known} | extra


def is_same(value: Any, read: Any) -> bool:
    """Whether values are equal, or have the same JSON, as times in an hour that repeats have."""
    try:
        return bool(value == read) or _json_encoder.encode(value) == _json_encoder.encode(read)
    except Exception:  # such as a secret, which has no JSON
        return False


def told(error: Any) -> str:
    """Format the errors of a model in one line."""
    try:
        found = error.errors()
        return "; ".join(
            f"{'.'.join(map(str, complaint['loc'])) or 'value'}: {complaint['msg']}"
            for complaint in found[:5]
        )
    except Exception:
        return " ".join(str(error).split()) or type(error).__name__


_json_encoder: Final = msgspec.json.Encoder(enc_hook=simplify)
_msgpack_encoder: Final = msgspec.msgpack.Encoder(enc_hook=simplify)
_json_decoder: Final = msgspec.json.Decoder()
_msgpack_decoder: Final = msgspec.msgpack.Decoder()

_packers: Final[dict[Codec, Callable[[Any], bytes]]] = {
    "json": _json_encoder.encode,
    "msgpack": _msgpack_encoder.encode,
    "pickle": lambda value: pickle.dumps(value, PICKLE_PROTOCOL),
}
_unpackers: Final[dict[Codec, Callable[[bytes], Any]]] = {
    "json": _json_decoder.decode,
    "msgpack": _msgpack_decoder.decode,
    "pickle": pickle.loads,
}


def pack(value: object, codec: Codec) -> bytes:
    """Encode a value; its properties and time zones may raise any error."""
    data = _packers[codec](value)
    if codec == "json":
        check_finite(data, value)
    return data


def unpack(data: bytes, codec: Codec) -> Any:
    """Decode a value; may raise any error. The caller must check that pickle is allowed."""
    return _unpackers[codec](data)


def reason(error: Exception, codec: Codec) -> str:
    """Return why a value cannot be encoded, as the second half of a sentence."""
    what = "JSON" if codec == "json" else codec
    text = str(error).strip().rstrip(".") or type(error).__name__
    if isinstance(error, PayloadError):
        return text
    if isinstance(error, TypeError) and text.endswith("do not fit"):
        return f"{text} {what}; {ADVICE}"
    return f"does not fit {what} ({text}); {ADVICE}"


def check_finite(data: bytes, value: object) -> None:
    """Refuse NaN and infinities, which the JSON encoder would silently convert to null."""
    if b"null" in data and not _is_finite(msgspec.to_builtins(value, enc_hook=simplify)):
        raise PayloadError(f"holds {NOT_FINITE}.")


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple | set | frozenset):
        return all(map(_is_finite, value))
    return True


BATCH_MARK: Final = b"\x06"
"""`lua/include/dedup.lua` has it too."""

MOST: Final = 1_001_000
"""Maximum bytes: a body of the maximum size, and its frames and signatures."""

_HEAD: Final = re.compile(rb"\x06([0-9]{1,9})\n")


def is_batch(body: bytes) -> bool:
    """Whether a stored body is a batch."""
    return body[:1] == BATCH_MARK


def frame(body: bytes) -> bytes:
    """Encode a body as a part of a batch."""
    return BATCH_MARK + b"%d\n" % len(body) + body


def calls_in(body: bytes) -> list[bytes]:
    """Return the bodies of the calls, at least one, in order of arrival."""
    found: list[bytes] = []
    at = 0
    while at < len(body):
        head = _HEAD.match(body, at)
        end = head.end() + int(head[1]) if head else 0
        if head is None or end > len(body):
            raise PayloadError(
                "The stored body of batched calls is cut off or damaged; delete the job, and find "
                "out who can write to the server."
            )
        found.append(body[head.end() : end])
        at = end
    return found


def join(data: bytes, decode: Callable[[bytes], Envelope]) -> tuple[Body, bytes]:
    """Join a batch: the first call's task and options, and the arguments of all calls.

    Return the body, with the most general codec of its calls; and the packed arguments, empty if
    all are JSON.
    """
    if len(data) > MOST:
        raise PayloadError(f"The batched calls have {len(data):,} bytes, more than {MOST:,}.")
    calls = calls_in(data)
    if any(map(is_batch, calls)):
        raise PayloadError(
            "The stored body of batched calls contains another batch; delete the job."
        )
    bodies = [decode(call).body for call in calls]
    codec = max((each.codec for each in bodies), key=CODECS.index)
    body = msgspec.structs.replace(bodies[0], args=(), kwargs={}, description=None, codec=codec)
    if any(each.task != body.task for each in bodies):
        raise PayloadError(f"Among the calls batched for {body.task} are calls of other tasks.")
    return (with_items(body, bodies), b"") if codec == "json" else (body, data)


def with_items(body: Body, calls: Sequence[Body]) -> Body:
    """Return the body with one argument: the list of the arguments of the calls."""
    if any(len(call.args) != 1 or call.kwargs for call in calls):
        raise PayloadError(f"Each call that is batched for {body.task} must have one argument.")
    return msgspec.structs.replace(body, args=([call.args[0] for call in calls],), kwargs={})
