"""The ten lines of the page on Sentry: each failed attempt is one event, with its job."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bide import Queue, Retry
from tests.support.console import bide, said

pytest.importorskip("sentry_sdk")

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "sentry.md"
SHOP = """
import json, os, time
from pathlib import Path

import bide
import sentry_sdk
import tracker
from sentry_sdk.transport import Transport


class Written(Transport):
    def capture_envelope(self, envelope):
        with Path(__file__).with_name("events").open("a") as file:
            file.write(json.dumps(envelope.get_event()) + "\\n")


sentry_sdk.init(dsn="https://key@sentry.invalid/1", transport=Written)

def charge(order_id: int, *, card: str = "visa") -> None:
    raise ConnectionError("the bank is away")

async def charge_async(order_id: int, *, card: str = "visa") -> None:
    raise ConnectionError("the bank is away")

def hang(seconds: float) -> None:
    time.sleep(seconds)

def die() -> None:
    os._exit(3)

def fine() -> None: ...

def later() -> None:
    raise bide.Snooze("1h")
"""


def reported(home: Path, url: str, *options: str) -> list[dict[str, Any]]:
    """What Sentry receives of the jobs that a worker runs."""
    (lines,) = re.findall(r"```python\n(# tracker\.py\n.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    (home / "tracker.py").write_text(lines)
    (home / "shop.py").write_text(SHOP)
    said(bide(home, "worker", "shop", "-q", "shop", "--burst", *options, url=url))
    return [json.loads(line) for line in (home / "events").read_text().splitlines()]


def of(events: list[dict[str, Any]], task: str) -> list[dict[str, Any]]:
    return [event for event in events if event["transaction"] == f"shop:{task}"]


@pytest.mark.parametrize(
    "executor",
    ["auto", *(pytest.param(one, marks=pytest.mark.slow) for one in ("process", "fork"))],
)
def test_each_failed_attempt_is_one_event(tmp_path: Path, one_url: str, executor: str) -> None:
    queue = Queue("shop", url=one_url)
    now = Retry(1, "fixed", base=0)
    job = queue.enqueue("shop:charge", 42, card="amex", retry=now)
    queue.enqueue("shop:charge_async", 42, retry=now)
    queue.enqueue("shop:hang", 30, timeout=0.1)
    queue.enqueue("shop:hang", "long")
    for task in ("fine", "later"):
        queue.enqueue(f"shop:{task}")
    if executor != "auto":
        queue.enqueue("shop:die", on_crash="fail")
    events = reported(tmp_path, one_url, "-x", executor)
    first, second = of(events, "charge")
    assert (first["level"], second["level"]) == ("warning", "error")
    assert [event["tags"] for event in (first, second)] == [
        {"queue": "shop", "attempt": 1},
        {"queue": "shop", "attempt": 2},
    ]
    assert first["contexts"]["job"] == {
        "id": job.id,
        "of": 2,
        "args": [42],
        "kwargs": {"card": "amex"},
    }
    (error,) = second["exception"]["values"]
    assert (error["type"], error["value"]) == ("ConnectionError", "the bank is away")
    assert error["stacktrace"]["frames"][-1]["function"] == "charge"
    assert [event["level"] for event in of(events, "charge_async")] == ["warning", "error"]
    refused = [event["exception"]["values"][-1]["type"] for event in of(events, "hang")]
    assert sorted(refused) == ["JobTimeout", "PayloadError"]
    expected = 6
    if executor != "auto":
        (crash,) = of(events, "die")
        assert crash["exception"]["values"][-1]["type"] == "WorkerCrashed"
        expected += 1
    assert len(events) == expected
    queue.close()


def test_the_lines_are_ten() -> None:
    (lines,) = re.findall(r"class ReportToSentry.*?\n\n\n", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(lines.strip().splitlines()) <= 10
