"""A record says which job it is of, and stays one record whatever it holds."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import re
import threading
from collections.abc import Callable
from contextvars import copy_context
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bide import logs
from bide.errors import UsageError
from bide.logs import JobFilter, JsonFormatter, KeyValueFormatter, TextFormatter, printable
from bide.model.context import CurrentJob, enter
from bide.model.job import Claimed
from bide.model.payload.body import Body

FORGED = "paid\r\n2026-01-01 00:00:00 ERROR forged\x1b[2J\x9b1m\u202egnp.exe\u2028x\x00\ud800"
KINDS = [TextFormatter(), TextFormatter(colour=True), KeyValueFormatter(), JsonFormatter()]


pytestmark = pytest.mark.usefixtures("own_logging")


class Deaf:
    unwanted = False
    max_attempts = 1
    prefix = "bide"
    lateness = 0.0

    def add_note(self, kind: str, text: bytes) -> None: ...

    def arguments(self) -> Body:
        return Body("shop:greet")


def job(id: str = "job-1", attempt: int = 2) -> CurrentJob:
    claimed = Claimed(id, b"", 1, attempt, 0, 0, 0)
    return CurrentJob("mail", "worker", "shop:greet", claimed, Deaf())


def record(message: Any = "hello", *args: Any, **extra: Any) -> logging.LogRecord:
    made = logging.getLogger("shop").makeRecord(
        "shop", logging.WARNING, "shop.py", 1, message, args, None, extra=extra
    )
    JobFilter().filter(made)
    return made


def in_a_job(call: Callable[[], Any], job: CurrentJob) -> Any:
    def run() -> Any:
        enter(job)
        return call()

    return copy_context().run(run)


def with_error(message: str) -> logging.LogRecord:
    made = record("failed")
    try:
        raise ValueError(message)
    except ValueError as error:
        made.exc_info = (ValueError, error, error.__traceback__)
    return made


def read_logfmt(line: str) -> dict[str, str]:
    """A small reader of the form, which knows nothing of how it was written."""
    fields: dict[str, str] = {}
    at = 0
    pattern = re.compile(r'([^\s="]+)=(?:("(?:[^"\\]|\\.)*")|([^\s"=\\]*))(?: |$)')
    while at < len(line):
        match = pattern.match(line, at)
        assert match, line[at:]
        name, quoted, bare = match.groups()
        assert name not in fields
        fields[name] = json.loads(quoted) if quoted else bare
        at = match.end()
    return fields


# -- the job


def test_outside_of_a_job_the_fields_are_empty() -> None:
    made = record()
    assert [getattr(made, name) for name in logs.JOB_FIELDS] == ["", "", "", ""]
    assert "job_id" not in json.loads(JsonFormatter().format(made))
    assert "job_id" not in KeyValueFormatter().format(made)


def test_within_a_job_every_form_names_it() -> None:
    made = in_a_job(record, job())
    assert (made.job_id, made.attempt, made.queue) == ("job-1", 2, "mail")
    assert made.task == "shop:greet"
    assert " job_id=job-1 attempt=2 " in KeyValueFormatter().format(made)
    assert " job_id=job-1 attempt=2 " in TextFormatter().format(made)
    assert json.loads(JsonFormatter().format(made))["attempt"] == 2


def test_jobs_in_threads_and_on_a_loop_are_told_apart() -> None:
    stream = io.StringIO()
    logs.setup("json", stream=stream)
    log = logging.getLogger("shop")
    met = threading.Barrier(2)

    def work() -> None:
        met.wait(60)
        log.info("in a thread")

    async def main() -> None:
        async def step(name: str) -> None:
            enter(job(name))
            await asyncio.sleep(0)
            log.info("on the loop")

        await asyncio.gather(step("loop-1"), step("loop-2"))

    threads = [threading.Thread(target=in_a_job, args=(work, job(f"thread-{n}"))) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    asyncio.run(main())
    seen = {json.loads(line)["job_id"] for line in stream.getvalue().splitlines()}
    assert seen == {"thread-0", "thread-1", "loop-1", "loop-2"}


def test_a_record_that_names_a_job_keeps_it() -> None:
    made = in_a_job(lambda: record(job_id="theirs"), job())
    assert made.job_id == "theirs"


# -- the forms


def test_text_is_a_line_with_time_level_logger_and_message() -> None:
    line = TextFormatter().format(record("%s paid", "Zoë 🦉"))
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d{4} WARNING shop: Zoë 🦉 paid", line
    )


def test_kv_quotes_what_needs_it() -> None:
    line = KeyValueFormatter().format(
        record('say "hi"', size=3, ratio=0.5, ok=True, none=None, path="a\\b", empty="", eq="a=b")
    )
    fields = read_logfmt(line)
    assert fields.pop("ts").endswith("+00:00")
    assert fields == {
        "level": "warning",
        "logger": "shop",
        "msg": 'say "hi"',
        "size": "3",
        "ratio": "0.5",
        "ok": "true",
        "none": "null",
        "path": "a\\b",
        "empty": "",
        "eq": "a=b",
    }
    assert 'empty="" ' in line


def test_json_keeps_the_types_of_what_a_record_brings() -> None:
    made = record("x", size=3, tags=["a", {"b": None}], when=datetime(2030, 1, 1), nan=float("nan"))
    fields = json.loads(JsonFormatter().format(made))
    assert fields["size"] == 3
    assert fields["tags"] == ["a", {"b": None}]
    assert fields["when"] == "datetime.datetime(2030, 1, 1, 0, 0)"
    assert fields["nan"] == "nan"
    assert datetime.fromisoformat(fields["ts"]).utcoffset() is not None


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


VALUES = [
    Broken(),
    CIRCLE,
    {1: Broken()},
    {(1, 2): 3},
    [float("inf")],
    10**6000,
    b"\xff",
    "\ud800",
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_no_value_loses_a_record(kind: logging.Formatter, value: Any) -> None:
    assert "hello" in kind.format(record(extra=value)).encode().decode()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("args", [(1, 2), ()])
def test_a_message_that_does_not_fit_its_arguments_is_shown(
    kind: logging.Formatter, args: tuple[Any, ...]
) -> None:
    made = record("%d and %d and %d", *args)
    assert "%d and %d and %d" in kind.format(made)


def test_a_field_of_the_record_takes_no_name_of_ours() -> None:
    made = record("hello", ts="x", level="y", exc="z", **{"a b=c": 1, 'd"': 2, "": 3})
    for fields in (
        read_logfmt(KeyValueFormatter().format(made)),
        json.loads(JsonFormatter().format(made)),
    ):
        assert fields["level"] == "warning"
        assert fields["level_"] == "y"
        assert fields["exc_"] == "z"
        assert str(fields["a_b_c"]) == "1"


# -- nothing forges a line


@pytest.mark.parametrize("kind", KINDS)
def test_a_message_stays_on_its_line(kind: logging.Formatter) -> None:
    hostile = record("%s", FORGED, **{"ke\ny": FORGED, "other": [FORGED]})
    line = (
        kind.format(hostile).replace("\x1b[2m", "").replace("\x1b[33m", "").replace("\x1b[0m", "")
    )
    assert line.isprintable()
    line.encode()


class Forging(str):
    """Text that formats itself; a text enum formats itself as the name of its member."""

    def __format__(self, spec: str) -> str:
        return FORGED


@pytest.mark.parametrize("kind", KINDS)
def test_text_of_another_class_cannot_forge_one_either(kind: logging.Formatter) -> None:
    line = kind.format(record("hello", field=Forging("kept")))
    assert FORGED not in line
    if not isinstance(kind, TextFormatter):
        assert "kept" in line


@pytest.mark.parametrize("kind", KINDS)
def test_an_exception_cannot_forge_one_either(kind: logging.Formatter) -> None:
    made = with_error(FORGED)
    made.stack_info = "Stack:\n" + FORGED
    first, *rest = kind.format(made).split("\n")
    assert "failed" in first
    if isinstance(kind, TextFormatter):
        assert "    Traceback (most recent call last):" in rest
        assert all(line.startswith("    ") and line.isprintable() for line in rest)
    else:
        assert rest == []
        assert first.isprintable()


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_whose_exception_was_not_caught_has_none(kind: logging.Formatter) -> None:
    """`makeLogRecord` does not replace `exc_info=True` by the exception, as a logger does."""
    made = logging.makeLogRecord({"name": "shop", "msg": "hello", "exc_info": True})
    line = kind.format(made)
    assert "hello" in line
    assert "\n" not in line


def test_kv_and_json_keep_what_was_said() -> None:
    made = with_error("two\nlines")
    read = json.loads(JsonFormatter().format(made))
    assert read["exc"].endswith("ValueError: two\nlines")
    assert read_logfmt(KeyValueFormatter().format(made))["exc"] == read["exc"]


@given(st.text(), st.text(min_size=1), st.text())
def test_whatever_the_text_it_can_be_read_back(message: str, name: str, value: str) -> None:
    made = record("%s", message)
    setattr(made, "x" + name, value)
    line = JsonFormatter().format(made)
    assert "\n" not in line
    assert json.loads(line)["msg"] == message
    read = read_logfmt(KeyValueFormatter().format(made))
    assert read["msg"] == message
    assert list(read.values())[-1] == value


@given(st.text())
def test_printable_text_is_one_line_and_no_command(text: str) -> None:
    shown = printable(text)
    assert not re.search("[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]", shown)
    shown.encode()


def test_what_is_harmless_is_left_alone() -> None:
    assert printable("naïve 日本 👩‍🚀 a\\b [red]") == "naïve 日本 👩‍🚀 a\\b [red]"
    assert printable("a\tb\nc\x1b") == r"a\tb\nc\x1b"


# -- setting up


def test_setup_logs_everything_to_one_stream_and_only_once() -> None:
    stream = io.StringIO()
    logs.setup("kv", logging.DEBUG, io.StringIO())
    logs.setup("kv", logging.DEBUG, stream)
    logging.getLogger("bide.worker").debug("ours")
    logging.getLogger("theirs").debug("not shown")
    logging.getLogger("theirs").info("shown")
    assert [read_logfmt(line)["msg"] for line in stream.getvalue().splitlines()] == [
        "ours",
        "shown",
    ]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(stream: io.StringIO) -> str:
        logs.setup(stream=stream)
        logging.getLogger("bide").error("hello")
        return stream.getvalue()

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[31mERROR" in shown(Terminal())
    assert "\x1b" not in shown(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in shown(Terminal())


class Sink:
    """A stream with the two methods that a handler needs."""

    def __init__(self) -> None:
        self.written: list[str] = []

    def write(self, text: str) -> None:
        self.written.append(text)

    def flush(self) -> None: ...


def test_a_stream_need_not_know_whether_it_is_a_terminal() -> None:
    sink: Any = Sink()
    logs.setup(stream=sink)
    logging.getLogger("bide").error("hello")
    assert "ERROR hello" in "".join(sink.written)


def test_a_format_that_there_is_not() -> None:
    with pytest.raises(UsageError, match="give text, kv or json"):
        logs.setup("xml")
