"""From values to bytes and back: JSON, msgpack, and pickle for those who chose it.

JSON and msgpack hold data: reading them builds plain values, and no class is ever named by one.
What is more than plain (a dataclass, a `datetime`, a pydantic model) is written in its usual plain
form, and becomes itself again through the annotations of the task (`convert.py`). Pickle holds
objects, and reading it can run any code: it is read only where that was allowed.
"""

from __future__ import annotations

import math
import pickle
from collections import deque
from collections.abc import Callable
from pathlib import PurePath
from typing import Any, Final, Literal, get_args

import msgspec

from bide.errors import PayloadError

Codec = Literal["json", "msgpack", "pickle"]
CODECS: Final[tuple[Codec, ...]] = get_args(Codec)
PICKLE_PROTOCOL: Final = 5

NOT_FINITE: Final = "a NaN or an infinity, which JSON has not; use None or text"
ADVICE: Final = "pass plain values (numbers, text, lists, dicts), or an id to look the rest up by"


def simplify(value: Any) -> Any:
    """The plain form of what the encoders do not know; `TypeError` if it has none."""
    kind = type(value)
    if kind is str:  # msgspec before 0.22 brings the text of an enum's member that is a key
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, deque):
        return list(value)
    if callable(getattr(kind, "model_dump", None)):  # a pydantic model, by its looks
        return value.model_dump(mode="json", by_alias=True)
    raise TypeError(f"objects of type {kind.__qualname__} do not fit")


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
    """Encode a value; properties and time zones of the value's own may raise anything."""
    data = _packers[codec](value)
    if codec == "json":
        check_finite(data, value)
    return data


def unpack(data: bytes, codec: Codec) -> Any:
    """Decode a value, or raise anything; whether pickle is allowed is for the caller to ask."""
    return _unpackers[codec](data)


def reason(error: Exception, codec: Codec) -> str:
    """Why a value did not fit, as the second half of a sentence."""
    what = "JSON" if codec == "json" else codec
    text = str(error).strip().rstrip(".") or type(error).__name__
    if isinstance(error, PayloadError):
        return text
    if isinstance(error, TypeError) and text.endswith("do not fit"):
        return f"{text} {what}; {ADVICE}"
    return f"does not fit {what} ({text}); {ADVICE}"


def check_finite(data: bytes, value: object) -> None:
    """Refuse NaN and infinities, which the JSON encoder would turn into null without a word."""
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
