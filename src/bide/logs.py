"""Logs with the fields of the current job, in three formats: for people, logfmt, JSON.

A record always stays one record: line breaks, escape sequences and characters that change the
direction of text are escaped. So a message that contains user input can neither forge a line nor
move the cursor. Only the format for people shows an exception on separate lines, each indented, so
that no line looks like the start of a record.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, Final, TextIO

from bide.errors import UsageError
from bide.model.context import current_job
from bide.model.ids import short_id
from bide.model.payload.body import LONGEST_TEXT, end_of, shown

JOB_FIELDS: Final = ("job_id", "attempt", "task", "queue")
"""The fields that `JobFilter` adds to a record; each is empty outside of a job."""

_UNSAFE: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
_UNSAFE_IN_LINE: Final = re.compile("[\x00-\x09\x0b-\x1f\x7f]")
_SHORT: Final = {"\n": r"\n", "\r": r"\r", "\t": r"\t"}
_PLAIN: Final = re.compile(r'[^\s"=\\]+')
_NOT_IN_A_KEY: Final = re.compile(r'[\s"=\\]')

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {
    "message",
    "asctime",
    "taskName",
    *JOB_FIELDS,
}


def printable(text: str) -> str:
    r"""Return the text on one line, safe for a terminal: control characters become `\n`, `\x1b`."""
    return _UNSAFE.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    char = match.group()
    number = ord(char)
    return _SHORT.get(char) or (f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}")


def count(number: int, one: str, many: str | None = None) -> str:
    """Return a count with its noun: `1 job`, `1,200 jobs`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


class Log(logging.LoggerAdapter[logging.Logger]):
    """A logger of bide: the arguments of a message stay on its line, in any format.

    Ids, names and errors come from the server, where other programs may have written them. And a
    program that runs a worker may have a log format of its own.
    """

    def __init__(self, name: str) -> None:
        super().__init__(logging.getLogger(name))
        self.logger.addFilter(_indent_exception)
        self.logger.addFilter(_FIELDS)

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a message with escaped arguments."""
        if self.isEnabledFor(level):
            kwargs.setdefault("stacklevel", 2)  # show the caller's line, not this one
            self.logger.log(level, msg, *map(_escaped, args), **kwargs)


def _indent_exception(record: logging.LogRecord) -> bool:
    """Format an exception for other handlers as our own handler does: indented and escaped."""
    if record.exc_info and not record.exc_text:
        record.exc_text = _indented(_exception(record))
    return True


def _exception(record: logging.LogRecord) -> str:
    """Return the exception of a record with the record's traceback."""
    kind, error, trace = record.exc_info or (None, None, None)
    if error is None:
        return ""
    if trace is BaseException.__getattribute__(error, "__traceback__"):
        return shown(error).removesuffix("\n")
    return end_of("".join(traceback.format_exception(kind, error, trace))).removesuffix("\n")


def _indented(text: str) -> str:
    """Indent the lines of an exception, so that none looks like the start of a record."""
    if text.isascii() and _UNSAFE_IN_LINE.search(text) is None:  # takes a tenth of the time
        return "    " + text.removesuffix("\n").replace("\n", "\n    ")
    return "\n".join("    " + printable(line) for line in text.splitlines())


class _Escaped:
    """An argument of a message that is formatted on one line."""

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return _cut(str, self._value)

    def __repr__(self) -> str:
        return _cut(repr, self._value)


def _cut(form: Callable[[object], str], value: object) -> str:
    """Return the start of a value's text; the methods of the value may raise any error."""
    try:
        text = form(value)
    except BaseException as broken:
        return f"<{type(value).__name__}: to show it raised {type(broken).__name__}>"
    return printable(text if len(text) <= LONGEST_TEXT else text[:LONGEST_TEXT] + "...")


def _escaped(value: object) -> object:
    if isinstance(value, int | float):
        return value
    if type(value) is str and len(value) <= LONGEST_TEXT and not _UNSAFE.search(value):
        return value
    return _Escaped(value)


class JobFilter(logging.Filter):
    """Adds `job_id`, `attempt`, `task` and `queue` of the current job to every record.

    Set it on a handler, so that it sees the records of all loggers. If a record already has one of
    these fields, its value stays.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; lets every record pass."""
        fields = dict.fromkeys(JOB_FIELDS, "") | _of_current_job()
        for name, value in fields.items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True


_FIELDS: Final = JobFilter()
"""The filter of bide's own loggers, so that every handler receives the fields."""


def _of_current_job() -> dict[str, Any]:
    try:
        job = current_job()
    except UsageError:
        return {}
    return {
        "job_id": short_id(job.id),
        "attempt": job.attempt,
        "task": job.task,
        "queue": job.queue,
    }


class TextFormatter(logging.Formatter):
    """The format for people: time, level, message and job; exceptions on indented lines."""

    def __init__(self, colour: bool = False) -> None:
        """Set up; with `colour`, for a terminal: shorter times and coloured levels."""
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """Format a record: one line, and indented lines for an exception."""
        at = datetime.fromtimestamp(record.created).astimezone()
        level = printable(record.levelname)
        ours = record.name.partition(".")[0] == "bide"  # bide's own messages name their job
        fields = [] if ours else _job_fields(record)
        job = "".join(f" {name}={value}" for name, value in fields)
        if self._colour:
            head = f"\x1b[2m{at:%H:%M:%S}\x1b[0m {_COLOURS.get(level, '')}{level:<7}\x1b[0m"
            job = f"\x1b[2m{printable(job)}\x1b[0m" if job else ""
        else:
            head = f"{at:%F %T}.{at.microsecond // 1000:03}{at:%z} {level}"
            job = printable(job)
        name = "" if ours else f"{printable(record.name)}: "
        lines = [f"{head} {name}{printable(_message(record))}{job}"]
        lines += [_indented(block[1]) for block in _blocks(self, record)]
        return "\n".join(lines)


_COLOURS: Final = {
    "DEBUG": "\x1b[2m",
    "INFO": "\x1b[32m",
    "WARNING": "\x1b[33m",
    "ERROR": "\x1b[31m",
    "CRITICAL": "\x1b[1;31m",
}


class KeyValueFormatter(logging.Formatter):
    """Logfmt: ts, level, logger, msg, the job's fields, the record's fields, exc, stack."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        return " ".join(f"{name}={_quoted(value)}" for name, value in _fields(self, record))


class JsonFormatter(logging.Formatter):
    """One JSON object per line, with the fields of `KeyValueFormatter`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        return _json(dict(_fields(self, record)))


Settings = tuple[str | None, int | None]
"""Format and level; None if not given."""

_settings: Settings | None = None
_handler: _Handler | None = None


def settings() -> Settings | None:
    """Return format and level of the last `setup`; None if it was not called."""
    return _settings


def setup(
    format: str | None = None, level: int | None = None, stream: TextIO | None = None
) -> None:
    """Log everything to one stream, for a process that runs jobs; a later call replaces it.

    If a module that a worker imports sets up logging, too, a format or a level that is given here
    still applies. If it is left out, the module's setting applies.

    Args:
        format: `text` (if it is left out), `kv` or `json`.
        level: the level of bide's own loggers, INFO by default. Other loggers log from INFO on.
        stream: standard error by default; at a terminal, `text` has colours unless `$NO_COLOR`
            is set.

    Raises:
        UsageError: there is no such format, or the stream is not a file.
    """
    global _handler, _settings
    to = stream or sys.stderr
    if not hasattr(to, "write"):
        raise UsageError(f"stream must be an open file, such as sys.stdout, not {to!r}.")
    formatter: logging.Formatter
    if format is None or format == "text":
        is_terminal = getattr(to, "isatty", bool)()
        formatter = TextFormatter(is_terminal and not os.environ.get("NO_COLOR"))
    elif format == "kv":
        formatter = KeyValueFormatter()
    elif format == "json":
        formatter = JsonFormatter()
    else:
        raise UsageError(f"There is no log format {format!r}; give text, kv or json.")
    _handler = _Handler(to)
    _shape(_handler, formatter)
    root = logging.getLogger()
    for old in [old for old in root.handlers if isinstance(old, _Handler)]:
        root.removeHandler(old)
    root.addHandler(_handler)
    root.setLevel(logging.INFO)
    logging.getLogger("bide").setLevel(logging.INFO if level is None else level)
    _settings = (format, level)


def hold() -> None:
    """Apply the arguments of `setup` again, after imported modules may have set up logging.

    A module decides what is logged, and where. The format of `setup` applies to all handlers that
    write to the terminal; handlers of files and services stay unchanged.
    """
    if _settings is None or _handler is None:
        return
    format, level = _settings
    root = logging.getLogger()
    known = root.manager.loggerDict.values()
    loggers = [root, *(one for one in known if isinstance(one, logging.Logger))]
    for logger in loggers:
        if logger.name.partition(".")[0] == "bide":
            logger.disabled = False  # `dictConfig` disables each logger that it does not name
    if level is not None:
        logging.getLogger("bide").setLevel(level)
    if format is None:
        return
    if not any(map(_is_terminal, root.handlers)):
        root.addHandler(_handler)
    for logger in loggers:
        for handler in filter(_is_terminal, logger.handlers[:]):
            if _handler in root.handlers and _reaches_root(logger):
                logger.removeHandler(handler)  # otherwise each record would appear twice
            else:
                _shape(handler, _handler.formatter)


class _Handler(logging.StreamHandler[TextIO]):
    """The class of bide's handler, which distinguishes it from the application's handlers."""


def _shape(handler: logging.Handler, formatter: logging.Formatter | None) -> None:
    """Set the format of a handler, and add the job's fields to its records."""
    handler.addFilter(_FIELDS)
    handler.setFormatter(formatter)


def _is_terminal(handler: logging.Handler) -> bool:
    """Whether it is a handler of the application for standard output or standard error."""
    if isinstance(handler, _Handler) or not isinstance(handler, logging.StreamHandler):
        return False
    return handler.stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)


def _reaches_root(logger: logging.Logger) -> bool:
    """Whether the handlers of the root logger receive its records."""
    while logger.parent is not None and logger.propagate:
        logger = logger.parent
    return logger.parent is None


# -- a record's fields


def _fields(formatter: logging.Formatter, record: logging.LogRecord) -> Iterator[tuple[str, Any]]:
    own = {
        "ts": datetime.fromtimestamp(record.created, UTC).isoformat(),
        "level": record.levelname.lower(),
        "logger": record.name,
        "msg": _message(record),
        **dict(_job_fields(record)),
    }
    yield from own.items()
    blocks = dict(_blocks(formatter, record))
    for name, value in vars(record).items():
        if name in _STANDARD:
            continue
        name = _NOT_IN_A_KEY.sub("_", printable(str(name))) or "_"
        while name in own or name in ("exc", "stack"):
            name += "_"
        own[name] = None  # the name is in use
        yield name, plain(value)
    yield from blocks.items()


def _job_fields(record: logging.LogRecord) -> list[tuple[str, Any]]:
    found = ((name, getattr(record, name, "")) for name in JOB_FIELDS)
    return [(name, plain(value)) for name, value in found if value != "" and value is not None]


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as error:  # the arguments do not fit the message: log both anyway
        return f"{_repr(record.msg)} {_repr(record.args)} <{type(error).__name__} in formatting>"


def _blocks(formatter: logging.Formatter, record: logging.LogRecord) -> Iterator[tuple[str, str]]:
    """Yield the parts with many lines: the exception and the stack."""
    if isinstance(record.exc_info, tuple) and record.exc_info[1] is not None:
        yield "exc", _exception(record)
    elif record.exc_text:
        yield "exc", record.exc_text
    if record.stack_info:
        yield "stack", formatter.formatStack(record.stack_info)


def plain(value: Any) -> Any:
    """Return a value that JSON can hold: plain values unchanged, others as text."""
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= 64 else _repr(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    try:
        return json.loads(json.dumps(value, default=_repr, allow_nan=False))
    except Exception:  # keys of other types, cycles, NaN, too deep
        return _repr(value)


def _repr(value: Any) -> str:
    try:
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"


def _json(value: Any) -> str:
    return _UNSAFE.sub(lambda m: f"\\u{ord(m.group()):04x}", json.dumps(value, ensure_ascii=False))


def _quoted(value: Any) -> str:
    """Format a value for logfmt: bare if it is unambiguous, otherwise quoted as in JSON."""
    if value is None:
        return "null"
    text = str.__str__(value) if isinstance(value, str) else _json(value)
    if _PLAIN.fullmatch(text) and not _UNSAFE.search(text):
        return text
    return _json(text)
