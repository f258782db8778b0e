"""A flood of failed attempts is logged up to a number a second; then once that there are more."""

from __future__ import annotations

import time

import pytest

from bide.worker.outcome import MOST_LOGGED, LogLimiter


def test_so_many_are_logged_in_a_second_and_that_there_are_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1_000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    floods = LogLimiter()
    logged = [floods.may_log("shop:send") for _ in range(MOST_LOGGED + 50)]
    assert logged == [True] * MOST_LOGGED + [False] * 50
    assert caplog.text.count("more than 100 attempts failed within a second") == 1
    assert floods.may_log("shop:other"), "of each task"
    assert floods.may_log("shop:send", is_final=False), "retries apart from final failures"
    now += 1
    assert floods.may_log("shop:send")
