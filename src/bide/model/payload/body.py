r"""The stored forms of a job's body, result and error. Scripts store them and never decode them.

A body is JSON, so that people and other programs can read it:

    {"task":"app.tasks:send","args":[42],"timeout":30.0}

A queue with msgpack or pickle writes the JSON without the arguments, a newline (which compact JSON
never contains), and the bytes of `[args, kwargs]`. So the task and the options of a job can be read
even if its arguments cannot. A result is also JSON, or starts with a byte with which JSON cannot
start.

A later release may add fields. If its name starts with `_`, older releases ignore it. If it must
be understood, the body has a higher `needs`, and an older worker leaves the job to a newer one. Any
other unknown field is an error, and fails the job.

In a script, `cjson` would convert 9007199254740993 to 9.007e15 and `[]` to `{}`.

The body of an item is a byte with which the body of a job cannot start, and the data as JSON:

    \x03{"user":1}

So a worker recognises an item, and a `DelayQueue` recognises a job.

Errors are stored as the text of `traceback.format_exception`. Python compiles the line of each
frame to mark the part that raised, which takes longer than a small job. If a service is down, many
thousand jobs raise at the same lines. The text of a frame depends only on its code and its
instruction, so it is cached.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping, Sequence
from types import CodeType, TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from bide.errors import BideError, PayloadError, PayloadTooNew, UsageError
from bide.model import retry as policies
from bide.model.durations import LONGEST_US
from bide.model.ids import LONGEST, LONGEST_TASK
from bide.model.payload.serializers import (
    Codec,
    calls_in,
    check_finite,
    is_batch,
    join,
    pack,
    reason,
    simplify,
    unpack,
    with_items,
)
from bide.model.payload.signing import VARIABLE, is_signed, unsigned

_MOST_FRAMES: Final = 1_000
"""Maximum number of frames whose text is cached."""

_DEEP: Final = 60
"""Number of frames above which `traceback` formats the exception."""

_REPEATS: Final = 3
"""Number of consecutive frames of one line after which `traceback` only counts the others."""

_CAUSE: Final = (
    "\nThe above exception was the direct cause of the following exception:\n\n",
    "\nDuring handling of the above exception, another exception occurred:\n\n",
)

_WITH_HINTS: Final = (AttributeError, ImportError, NameError, SyntaxError)
"""Errors to which `traceback` adds suggestions."""

LONGEST_TEXT: Final = 8_000
"""Maximum characters of an exception that are stored or logged."""

_frames: Final[dict[tuple[int, int], tuple[CodeType, str]]] = {}


def shown(error: BaseException) -> str:
    """Return the end of an exception's text, also if the exception cannot be formatted."""
    try:
        text = format_error(error)
    except BaseException as broken:
        return f"<no traceback: formatting it raised {type(broken).__name__}>"
    return end_of(text)


def end_of(text: str) -> str:
    """Return the last `LONGEST_TEXT` characters, and mark a cut."""
    return text if len(text) <= LONGEST_TEXT else "...\n" + text[-LONGEST_TEXT:]


def format_error(error: BaseException) -> str:
    """Format an exception with its traceback and its causes."""
    parts: list[str] = []
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None:
        frames = _frames_of(one)
        if frames is None or id(one) in seen or isinstance(one, BaseExceptionGroup):
            return "".join(traceback.format_exception(error))
        seen.add(id(one))
        head = "Traceback (most recent call last):\n" if frames else ""
        parts.append(f"{head}{''.join(frames)}{_message(one)}")
        if one.__cause__ is not None:
            one = one.__cause__
            parts.append(_CAUSE[0])
        elif one.__context__ is not None and not one.__suppress_context__:
            one = one.__context__
            parts.append(_CAUSE[1])
        else:
            one = None
    return "".join(reversed(parts))


def _frames_of(error: BaseException) -> list[str] | None:
    """Return the text of each frame; None for a deep or recursive traceback."""
    frames: list[str] = []
    at = error.__traceback__
    last: tuple[CodeType, int] | None = None
    repeats = 0
    while at is not None:
        where = at.tb_frame.f_code, at.tb_lineno
        repeats = repeats + 1 if where == last else 1
        if repeats > _REPEATS or len(frames) > _DEEP:
            return None
        last = where
        frames.append(_frame(at))
        at = at.tb_next
    return frames


def _frame(at: TracebackType) -> str:
    code = at.tb_frame.f_code
    key = id(code), at.tb_lasti
    found = _frames.get(key)
    if found is not None and found[0] is code:
        return found[1]
    text = "".join(traceback.format_tb(at, limit=1))
    if len(_frames) >= _MOST_FRAMES:
        _frames.clear()
    _frames[key] = code, text
    return text


def _message(error: BaseException) -> str:
    kind = type(error)
    if isinstance(error, _WITH_HINTS) or getattr(error, "__notes__", None):
        return "".join(traceback.format_exception_only(error))
    name, module = kind.__qualname__, kind.__module__
    if module not in ("__main__", "builtins"):
        name = f"{module if isinstance(module, str) else '<unknown>'}.{name}"
    try:
        message = str(error)
    except Exception:
        return "".join(traceback.format_exception_only(error))
    return f"{name}: {message}\n" if message else f"{name}\n"


if TYPE_CHECKING:
    from bide.model.retry import Retry
else:
    Retry = Any  # msgspec reads the stored form (`policies.Retry.wire`)

ITEM_MARK: Final = b"\x03"
"""`lua/pop.lua` has it too."""

MAX_DATA: Final = 1_000_000
"""Maximum bytes of an item."""


def encode_item(data: object) -> bytes:
    """Encode data as JSON of at most `MAX_DATA` bytes."""
    try:
        packed = pack(data, "json")
    except Exception as error:  # properties and time zones in the data may raise any error
        raise PayloadError(f"The data: {reason(error, 'json')}.") from None
    if len(packed) > MAX_DATA:
        raise PayloadError(
            f"The data take {len(packed):,} bytes, more than {MAX_DATA:,}; store them elsewhere "
            "and push their id."
        )
    return ITEM_MARK + packed


def is_item(body: bytes) -> bool:
    """Whether a stored body is an item, not a job."""
    return body[:1] == ITEM_MARK


def decode_item(body: bytes) -> Any:
    """Decode a stored item; raise `PayloadError` for a job."""
    if not is_item(body):
        raise PayloadError(
            "This is a job, not data, and a DelayQueue cannot run it; let a Worker serve this "
            "queue, and retry the job."
        )
    try:
        return unpack(unsigned(body)[1:], "json")
    except Exception as error:
        raise PayloadError(f"The stored data are not JSON: {error}.") from None


MAX_BODY: Final = 1_000_000
"""Maximum bytes of a body or a result."""

DEFAULT_TIMEOUT: Final = 300.0
"""Default maximum seconds of a run."""

_LONGEST: Final = LONGEST_US / 1e6
_TimeOut = Annotated[float, msgspec.Meta(gt=0, le=_LONGEST)]
_Name = Annotated[str, msgspec.Meta(max_length=LONGEST_TASK)]
_Parent = Annotated[str, msgspec.Meta(max_length=2 * LONGEST + 2)]
_Keep = Annotated[float, msgspec.Meta(ge=0, le=_LONGEST)]

_MARKS: Final[dict[Codec, bytes]] = {"msgpack": b"\x01", "pickle": b"\x02"}
_MARKED: Final[dict[int, Codec]] = {mark[0]: codec for codec, mark in _MARKS.items()}


NEWEST: Final = 1
"""The newest form of a body that this release understands: the maximum of `needs`."""

_PASSED_OVER: Final = "_"
"""The first character of a field's name that older releases may ignore."""


class Body(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Task, arguments and options of one job, as they are stored.

    If an option is None, the task's default applies, then bide's. Reading checks the bounds of all
    values, because other programs may write a body to the server: a number or a field that no
    producer of bide writes is invalid.
    """

    task: _Name
    """The name of the task."""
    args: Sequence[Any] = ()
    """The positional arguments."""
    kwargs: Mapping[str, Any] = {}
    """The arguments by name."""
    timeout: _TimeOut | None = None
    """Seconds."""
    retry: Retry | None = None
    keep: _Keep | None = None
    """Seconds that the finished job is kept."""
    on_crash: Literal["rerun", "fail"] | None = None
    parents: Sequence[_Parent] = ()
    """The ids of its parents; `{queue}id` for a parent in another queue."""
    meta: dict[str, Any] | None = None
    description: str | None = None
    """A description for people."""
    on_success: _Name | None = None
    """The name of a task."""
    on_failure: _Name | None = None
    """The name of a task."""
    codec: Codec = "json"
    """How the arguments, and later the result, are encoded."""
    schedule: str | None = None
    """The name of the schedule that creates jobs with this body."""
    needs: Annotated[int, msgspec.Meta(ge=1)] = 1
    """The form that a worker must understand to run the job: above 1 only in newer releases."""


class Envelope(msgspec.Struct, frozen=True):
    """A stored body whose arguments may not have been read yet."""

    body: Body
    packed: bytes
    """The encoded arguments; empty if the codec is JSON."""


class ErrorInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error as it is stored: plain text, from which no exception is rebuilt."""

    type: str
    message: str
    traceback: str = ""


_encoder: Final = msgspec.json.Encoder(enc_hook=simplify)
_body_decoder: Final = msgspec.json.Decoder(Body)
_fields_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_error_decoder: Final = msgspec.json.Decoder(ErrorInfo)


def encode_body(body: Body, names: Sequence[str] = ()) -> bytes:
    """Encode a body; `names` are the task's positional parameters, for errors."""
    if body.retry is not None:
        body = msgspec.structs.replace(body, retry=body.retry.wire())
    try:
        if body.codec == "json":
            data = _encoder.encode(body)
            if b"null" in data:
                check_finite(data, (body.args, body.kwargs, body.meta))
        else:
            head = _encoder.encode(msgspec.structs.replace(body, args=(), kwargs={}))
            check_finite(head, body.meta)
            data = head + b"\n" + pack((body.args, body.kwargs), body.codec)
    except Exception as error:  # properties and time zones in the arguments may raise any error
        raise PayloadError(_what_does_not_fit(body, names, error)) from None
    if body.codec != "json":
        _check_end(data, f"The arguments of {body.task} end")
    if len(data) > MAX_BODY:
        raise PayloadError(_too_large(f"The arguments of {body.task}", len(data)))
    return data


def _check_end(data: bytes, what: str) -> None:
    """Refuse data that end like a signature, because a reader without keys would remove it.

    JSON cannot: a signature begins with characters that JSON escapes.
    """
    if is_signed(data):
        raise PayloadError(
            f"{what} like a signature of bide (a newline, the byte 4, a key's id and 64 digits), "
            'which readers remove; change the end of the text, or use serializer="json".'
        )


def check_id(id: str) -> None:
    """Refuse an id from another program that no producer of bide would create."""
    if id.isascii() and id.isprintable() and len(id) <= LONGEST:
        return
    if any("\udc80" <= c <= "\udcff" for c in id):
        what = "is not UTF-8"
    elif not id.isprintable():
        what = "has characters that cannot be printed"
    elif len(id.encode("utf-8", "replace")) > LONGEST:
        what = f"is longer than {LONGEST} bytes"
    else:
        return
    raise PayloadError(
        f"The id of this job {what}; let its producer create ids of letters, digits and '-_.:/'."
    )


def decode_envelope(data: bytes) -> Envelope:
    """Read the task and the options of a stored body, and its arguments if they are JSON.

    A signature after the body is ignored, because a process with keys has checked it before. Raises
    `PayloadTooNew` if only a newer release can run the job.
    """
    if is_batch(data):  # a batch: the bodies of several calls (`serializers.py`)
        return Envelope(*join(data, decode_envelope))
    data = unsigned(data)
    if len(data) > MAX_BODY:
        raise PayloadError(_too_large("The stored body", len(data), "takes"))
    if is_item(data):
        raise PayloadError(
            "This is an item of a DelayQueue, not a job: take it with pop() or take(), let "
            "no Worker serve its queue, and return it with the DelayQueue's retry()."
        )
    head, newline, packed = data.partition(b"\n")
    try:
        body = _decode_head(head)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, ValueError) as error:
        lines = " (it is one line of JSON; this one has more)" if newline else ""
        raise PayloadError(f"The stored body is not one of bide's: {error}{lines}.") from None
    if bool(newline) == (body.codec == "json"):
        raise PayloadError(
            "The stored body is not one of bide's: a newline and the arguments follow the "
            "options if the codec is msgpack or pickle, and only then."
        )
    return Envelope(body, packed)


def _decode_head(head: bytes) -> Body:
    """Decode task and options that this release or a newer one has written."""
    try:
        body = _decode_body(head)
    except msgspec.ValidationError:
        told = _fields_decoder.decode(head)
        _check_needs(told.get("needs"))
        known = {name: raw for name, raw in told.items() if not name.startswith(_PASSED_OVER)}
        if len(known) == len(told):
            raise
        body = _decode_body(_encoder.encode(known))
    if body.needs > NEWEST:
        raise _too_new(body.needs)
    return body


def _decode_body(head: bytes) -> Body:
    body = _body_decoder.decode(head)
    if body.retry is not None:
        try:
            retry = policies.Retry.from_wire(body.retry)
        except UsageError as error:
            raise msgspec.ValidationError(f"{error} - at `$.retry`") from None
        msgspec.structs.force_setattr(body, "retry", retry)
    return body


def _check_needs(raw: msgspec.Raw | None) -> None:
    """Check `needs`, which must be readable even if other fields of a newer body are not."""
    try:
        needs = 1 if raw is None else msgspec.json.decode(raw, type=int)
    except msgspec.MsgspecError:
        return
    if needs > NEWEST:
        raise _too_new(needs)


def _too_new(needs: int) -> PayloadTooNew:
    return PayloadTooNew(
        f"This job needs a newer bide (its body has form {needs}, and this release reads "
        f"{NEWEST} at most); start a worker of the release that enqueued it."
    )


def open_envelope(envelope: Envelope, *, allow_pickle: bool = False) -> Body:
    """Decode the arguments; `allow_pickle`: pickle is allowed, and one of our keys signed it."""
    body = envelope.body
    if body.codec == "json":
        return body
    if body.codec == "pickle" and not allow_pickle:
        raise PayloadError(
            f"The arguments of {body.task} are pickled, and reading them could run any code; it "
            "is done only where they were signed (give both sides a key, "
            f"${VARIABLE}) and it was allowed with `bide worker --allow-pickle`, "
            'Worker(..., allow_pickle=True) or Queue(..., serializer="pickle").'
        )
    if is_batch(envelope.packed):
        calls = calls_in(envelope.packed)
        return with_items(body, [decode_body(call, allow_pickle=allow_pickle) for call in calls])
    try:
        args, kwargs = unpack(envelope.packed, body.codec)
        if not isinstance(args, list | tuple) or not isinstance(kwargs, dict):
            raise TypeError("they are not a list and a dict")
    except Exception as error:  # what a pickle names may be missing, or raise anything
        raise PayloadError(
            f"The arguments of {body.task} cannot be read as {body.codec} "
            f"({type(error).__name__}: {error}); is the producer's code deployed here?"
        ) from None
    return msgspec.structs.replace(body, args=args, kwargs=kwargs)


def decode_body(data: bytes, *, allow_pickle: bool = False) -> Body:
    """Decode a stored body, with its arguments."""
    envelope = decode_envelope(data)
    if envelope.body.codec == "json":
        return envelope.body
    return open_envelope(envelope, allow_pickle=allow_pickle)


def encode_result(task: str, result: object, codec: Codec = "json") -> bytes:
    """Encode the result of a task; None takes no bytes."""
    if result is None:
        return b""
    if isinstance(result, policies.Retry):
        raise PayloadError(
            f"The result of {task} is a Retry, which would retry nothing; raise RetryLater(...), "
            "or give the task retry=."
        )
    if isinstance(result, BideError):
        name = type(result).__name__
        raise PayloadError(
            f"The result of {task} is the exception {name}; raise it instead of returning it: "
            f"raise {name}(...)."
        )
    try:
        data = pack(result, codec)
    except Exception as error:  # properties and time zones in the result may raise any error
        raise PayloadError(f"The result of {task}: {reason(error, codec)}.") from None
    if len(data) > MAX_BODY:
        raise PayloadError(_too_large(f"The result of {task}", len(data), "takes", "return"))
    data = _MARKS.get(codec, b"") + data
    if codec != "json":
        _check_end(data, f"The result of {task} ends")
    return data


def is_pickled(result: bytes) -> bool:
    """Whether a stored result is a pickle."""
    return result.startswith(_MARKS["pickle"])


def decode_result(data: bytes | None, *, allow_pickle: bool = False) -> Any:
    """Decode a stored result; empty means None."""
    if not data:
        return None
    codec: Codec = _MARKED.get(data[0], "json")
    if codec == "pickle" and not allow_pickle:
        raise PayloadError(
            "The stored result is pickled, and reading it could run any code; it is done only "
            f"where it was signed (give both sides a key, ${VARIABLE}) and it was allowed "
            'with Queue(..., serializer="pickle").'
        )
    try:
        return unpack(data if codec == "json" else unsigned(data)[1:], codec)
    except Exception as error:  # what a pickle names may be missing, or raise anything
        raise PayloadError(f"The stored result is not one of bide's: {error}.") from None


def encode_error(error: BaseException) -> bytes:
    """Describe an exception: its type, message and the end of its traceback."""
    text = shown(error)
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else _qualified(kind)
    try:
        message = str(error)
    except BaseException as broken:  # a broken __str__ must not lose the job's outcome
        message = f"<no message: its __str__ raised {type(broken).__name__}>"
    name, message = name[:LONGEST_TASK], message[:LONGEST_TEXT]
    info = ErrorInfo(_encodable(name), _encodable(message), _encodable(text))
    return _encoder.encode(info)


def decode_error(data: bytes | None) -> ErrorInfo | None:
    """Decode a stored error; empty means None."""
    if not data:
        return None
    try:
        return _error_decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ErrorInfo("unreadable", repr(data[:200]))


def _qualified(kind: type) -> str:
    """Return the name from which users import a class; bide's own errors come from `bide`."""
    module = "bide" if kind.__module__.startswith("bide.") else kind.__module__
    return f"{module}.{kind.__qualname__}"


def _encodable(text: str) -> str:
    """Replace lone surrogates, which JSON cannot carry."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _what_does_not_fit(body: Body, names: Sequence[str], error: Exception) -> str:
    """Return a sentence that names the argument; each is encoded again, only after an error."""
    for who, value, codec in _values(body, names):
        try:
            pack(value, codec)
        except Exception as own:
            return f"{who} of {body.task}: {reason(own, codec)}."
    return f"The arguments of {body.task}: {reason(error, body.codec)}."


def _values(body: Body, names: Sequence[str]) -> list[tuple[str, object, Codec]]:
    found: list[tuple[str, object, Codec]] = []
    for i, value in enumerate(body.args):
        who = f"argument {names[i]!r}" if i < len(names) else f"positional argument {i + 1}"
        found.append((who, value, body.codec))
    for name, value in body.kwargs.items():
        found.append((f"argument {name!r}", value, body.codec))
    for name, value in (body.meta or {}).items():
        found.append((f"meta {name!r}", value, "json"))
    return found


def _too_large(what: str, size: int, take: str = "take", give: str = "pass") -> str:
    return (
        f"{what} {take} {size:,} bytes, more than {MAX_BODY:,}; "
        f"store the data elsewhere and {give} its id."
    )


def with_parents(data: bytes, parents: Sequence[str]) -> bytes:
    """Return the body with these parents instead of its own."""
    if is_item(data):
        raise PayloadError("Data cannot wait for jobs; enqueue a job that pushes it.")
    head, newline, packed = data.partition(b"\n")
    named = msgspec.Raw(msgspec.json.encode(parents))
    fields = {**_fields_decoder.decode(head), "parents": named}
    data = msgspec.json.encode(fields) + newline + packed
    if len(data) > MAX_BODY:
        raise PayloadError(
            f"A job with so many parents takes {len(data):,} bytes, over {MAX_BODY:,}; add jobs "
            f"that depend on a part of them each, and let this job depend on those."
        )
    return data


def of_schedule(data: bytes, schedule: str) -> bytes:
    """Return an encoded body for the jobs of a schedule, without decoding its arguments."""
    head, newline, packed = data.partition(b"\n")
    return b'%b,"schedule":%b}' % (head[:-1], msgspec.json.encode(schedule)) + newline + packed
