"""What travels: the body of a job, its result, its error; as JSON, encoded once by the client.

A script stores a body and hands it out, and never looks inside: `cjson` would turn
9007199254740993 into 9.007e15 and `[]` into `{}`. A payload is data: decoding it builds nothing
but plain values, and no class is ever named by one.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from bide.errors import PayloadError
from bide.retry import NO_RETRY, Retry

MAX_BODY: Final = 1_000_000
"""The largest body or result in bytes; a job is a message, not a file."""

DEFAULT_TIMEOUT: Final = 300.0
"""Seconds that a job may run unless it says otherwise."""

_MAX_TRACEBACK: Final = 8_000


class Body(msgspec.Struct, frozen=True, omit_defaults=True):
    """Task, arguments and options of one job, as they are stored."""

    task: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = {}
    timeout: float = DEFAULT_TIMEOUT
    retry: Retry = NO_RETRY


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as it is stored: plain text, never an exception that a reader would rebuild."""

    type: str
    message: str
    traceback: str = ""


_encoder: Final = msgspec.json.Encoder()
_body_decoder: Final = msgspec.json.Decoder(Body)
_error_decoder: Final = msgspec.json.Decoder(ErrorInfo)
_plain_decoder: Final = msgspec.json.Decoder()


def encode_body(body: Body) -> bytes:
    """Encode a body.

    Raises:
        PayloadError: an argument does not fit JSON, or the whole is over `MAX_BODY` bytes.
    """
    try:
        data = _encoder.encode(body)
        _check_finite(data, (body.args, body.kwargs), f"The arguments of {body.task}")
    except PayloadError:
        raise
    except Exception as error:  # properties and time zones of the arguments' own may raise anything
        raise PayloadError(
            f"The arguments of {body.task} do not fit JSON: {error}; "
            "pass plain values (numbers, text, lists, dicts), or an id to look the rest up by."
        ) from None
    return _bounded(data, f"The arguments of {body.task}")


def decode_body(data: bytes) -> Body:
    """Decode a stored body.

    Raises:
        PayloadError: it is not a body.
    """
    try:
        return _body_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise PayloadError(f"The stored body is not one of bide's: {error}.") from None


def encode_result(task: str, result: object) -> bytes:
    """Encode what a task returned; None takes no bytes.

    Raises:
        PayloadError: the result does not fit JSON or is too large.
    """
    if result is None:
        return b""
    try:
        data = _encoder.encode(result)
        _check_finite(data, result, f"The result of {task}")
    except PayloadError:
        raise
    except Exception as error:  # properties and time zones of the result's own may raise anything
        raise PayloadError(f"The result of {task} does not fit JSON: {error!r}.") from None
    return _bounded(data, f"The result of {task}")


def decode_result(data: bytes | None) -> Any:
    """Decode a stored result; nothing stored is None.

    Raises:
        PayloadError: it is not JSON.
    """
    try:
        return None if not data else _plain_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PayloadError(f"The stored result is not one of bide's: {error}.") from None


def encode_error(error: BaseException) -> bytes:
    """Describe an exception: its type, message and the end of its traceback."""
    try:
        text = "".join(traceback.format_exception(error))
    except BaseException as broken:
        text = f"<no traceback: formatting it raised {type(broken).__name__}>"
    if len(text) > _MAX_TRACEBACK:
        text = "...\n" + text[-_MAX_TRACEBACK:]
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else _qualified(kind)
    try:
        message = str(error)
    except BaseException as broken:  # a broken __str__ must not lose the job's outcome
        message = f"<no message: its __str__ raised {type(broken).__name__}>"
    info = ErrorInfo(_encodable(name), _encodable(message[:_MAX_TRACEBACK]), _encodable(text))
    return _encoder.encode(info)


def decode_error(data: bytes | None) -> ErrorInfo | None:
    """Decode a stored error; nothing stored is None."""
    if not data:
        return None
    try:
        return _error_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ErrorInfo("unreadable", repr(data[:200]))


def _qualified(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def _encodable(text: str) -> str:
    """Replace lone surrogates, which JSON cannot carry."""
    return text.encode("utf-8", "replace").decode()


def _check_finite(data: bytes, value: object, what: str) -> None:
    """Refuse NaN and infinities, which the encoder would turn into null without a word."""
    if b"null" in data and not _is_finite(msgspec.to_builtins(value)):
        raise PayloadError(
            f"{what} hold a NaN or an infinity, which JSON has not; use None or text."
        )


def _is_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return True


def _bounded(data: bytes, what: str) -> bytes:
    if len(data) > MAX_BODY:
        raise PayloadError(
            f"{what} take {len(data):,} bytes, more than {MAX_BODY:,}; "
            "store the data elsewhere and pass its id."
        )
    return data
