"""The notes of a job: what is written for them, and how what a server holds is read."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from bide.model.history import (
    LONGEST_LOG,
    LONGEST_PROGRESS,
    Attempt,
    History,
    LogLine,
    Move,
    Progress,
    encode_log,
    encode_progress,
    read_history,
)
from bide.model.payload.body import ErrorInfo, encode_error

AT = datetime(2026, 1, 2, 3, 4, 5, 600_700, UTC)
US = round(AT.timestamp() * 1e6)


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(AT.timestamp() + seconds, UTC)


def us(seconds: int) -> int:
    return US + seconds * 1_000_000


def test_notes_of_each_kind_are_read_in_their_order() -> None:
    error = encode_error(ValueError("no such order"))
    history = read_history(
        b"\n".join(
            [
                b"E 1 %d %d host:7 %b" % (us(0), us(1), error),
                b"C 2 %d %d host:8" % (us(2), us(3)),
                b"L %d %b" % (us(4), encode_log("paid")),
                b"L %d %b" % (us(5), encode_log("sent twice")),
                b"P %d %b" % (us(6), encode_progress(0.25, "a quarter")),
                b"P %d %b" % (us(7), encode_progress(0.5, "half of it")),
                b"R %d %d %d" % (us(8), us(9), us(10)),
            ]
        )
    )
    first, second = history.attempts
    assert first._replace(error=None) == Attempt(1, at(0), at(1), "host:7", None)
    assert first.error is not None
    assert (first.error.type, first.error.message) == ("ValueError", "no such order")
    assert second == Attempt(2, at(2), at(3), "host:8", None)
    assert history.logs == (LogLine(at(4), "paid"), LogLine(at(5), "sent twice"))
    assert history.progress == Progress(0.5, "half of it", at(7))
    assert history.moves == (Move(at(8), at(9), at(10)),)
    assert history.error == first.error


@pytest.mark.parametrize(
    "line",
    [
        b"E x 1 2 host",
        b"E 1 2",
        b"L x " + encode_log("a"),
        b"L 1 7",
        b"L 1",
        b"P 1 [1]",
        b"P x " + encode_progress(0.5, "a"),
        b"R 1 2",
        b"R 1 2 x",
        b"? 1 2 3",
        b"",
    ],
)
def test_a_line_that_cannot_be_read_hides_none_behind_it(line: bytes) -> None:
    kept = b"L %d %b" % (us(0), encode_log("kept"))
    assert read_history(line + b"\n" + kept) == History(logs=(LogLine(at(0), "kept"),))


def test_a_job_without_notes_has_an_empty_history() -> None:
    assert read_history(None) == read_history(b"") == History()
    assert History().error is None


@pytest.mark.parametrize(
    ("type", "crashed"), [("WorkerCrashed", True), ("bide.WorkerCrashed", True), ("OSError", False)]
)
def test_the_error_says_whether_the_process_died(type: str, crashed: bool) -> None:
    error = ErrorInfo(type, "", "")
    assert Attempt(1, AT, AT, "host:7", error).crashed is crashed
    assert Attempt(1, AT, AT, "host:7", None).crashed


def test_long_text_is_cut_and_has_no_lone_surrogates() -> None:
    assert encode_log("x" * LONGEST_LOG) == b'"%b"' % (b"x" * LONGEST_LOG)
    assert encode_log("x" * (LONGEST_LOG + 1)) == b'"%b"' % (b"x" * LONGEST_LOG)
    assert encode_progress(0.5, "y" * (LONGEST_PROGRESS + 1)) == b'[0.5,"%b"]' % (
        b"y" * LONGEST_PROGRESS
    )
    assert encode_log("a\ud800b") == b'"a?b"'
    assert encode_progress(1.0, "é\ud800") == '[1.0,"é?"]'.encode()
