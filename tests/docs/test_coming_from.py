"""The pages for those who come from elsewhere leave nothing out; their features have tests."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.docs.pages import ROOT

FOLDER = ROOT / "docs" / "coming-from"
TESTS = ROOT / "docs" / "tests.md"
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+)(?:\[[^`]*\])?)?`")


def public(kind: object) -> Iterator[str]:
    return (name for name in dir(kind) if not name.startswith("_"))


def rq_names() -> Iterator[str]:
    rq = pytest.importorskip("rq")
    from rq import command, exceptions, registry, suspension
    from rq.cli.cli import main
    from rq.job import Job, JobStatus

    ours = {"VERSION"}  # and its modules
    yield from (n for n in public(rq) if callable(getattr(rq, n)) and n not in ours)
    for kind in (rq.Queue, Job, rq.Worker):
        yield from public(kind)
    yield from (n for n in public(registry) if re.fullmatch("[A-Z]\\w+JobRegistry", n))
    for module in (exceptions, suspension):
        own = (n for n in public(module) if hasattr(getattr(module, n), "__module__"))
        yield from (n for n in own if getattr(module, n).__module__ == module.__name__)
    yield from (n for n in public(command) if re.fullmatch("send_(?!command)\\w+", n))
    yield from (f"rq {name}" for name in main.commands)
    yield from (status.value for status in JobStatus)
    for function in (rq.Queue.enqueue_call, rq.Worker.work, rq.Worker.__init__):
        code = function.__code__
        yield from code.co_varnames[1 : code.co_argcount]


IN_SIGNATURES_ALONE = {"func", "args", "kwargs", "queues", "connection", "name", "burst"}


def test_every_name_of_rq_has_its_place() -> None:
    page = (FOLDER / "rq.md").read_text("utf-8")
    rows = [line for line in page.splitlines() if line.startswith("|")]
    spans = " ".join(span for row in rows for span in re.findall(r"`([^`]+)`", row))
    missing = {
        name for name in rq_names() if not re.search(rf"(?<!\w){re.escape(name)}(?!\w)", spans)
    }
    assert missing - IN_SIGNATURES_ALONE == set()


OF_THE_OTHERS = {
    "delay-rq": (
        *("DelayQueue", "enqueue", "enqueue_call", "delay", "delay_key", "enqueue_delay_job"),
        *("Timer", "rq info", "rq:delay_queue:", "ZADD", "ZREM"),
    ),
    "redis-lists": (
        *("RPUSH", "BLPOP", "send_sold_email_via_queue", "seller_id", "item_id", "price"),
        *("buyer_id", "time", "worker_watch_queue", "worker_watch_queues", "callbacks"),
        *("execute_later", "delayed:", "poll_queue"),
    ),
    "data-queue": (
        *("DelayQueue", "push", "pop", "num", "previous", "uuid4", "ZREM", "MGET", "DEL"),
        *("host", "port", "db"),
    ),
    "bull": (
        *("new Queue", "prefix", "redis", "defaultJobOptions", "delay", "queue.add", "process"),
        *("wait", "active", "delayed", "completed", "failed", "timestamp", "attempts", "backoff"),
        *("priority", "lifo", "repeat", "limiter", "sandboxed processor", "concurrency"),
        *("stalled", "global:", "paused", "resumed", "progress", "noeviction", "guardInterval"),
    ),
}
"""What the other four systems had, by their own names."""


@pytest.mark.parametrize("page", OF_THE_OTHERS)
def test_every_name_of_the_others_has_its_place(page: str) -> None:
    text = (FOLDER / f"{page}.md").read_text("utf-8")
    code = " ".join([*re.findall(r"`([^`]+)`", text), *re.findall(r"```.*?```", text, re.DOTALL)])
    names = OF_THE_OTHERS[page]
    assert [n for n in names if not re.search(rf"(?<!\w){re.escape(n)}", code + text)] == []


def test_the_page_of_tests_has_every_page() -> None:
    sections = TESTS.read_text("utf-8").split("\n## ")[2:]
    named = {re.findall(r"\]\(coming-from/([\w-]+)\.md\)", each)[0] for each in sections}
    assert named == {page.stem for page in FOLDER.glob("*.md")} - {"index"}
    assert all(TEST.search(each) for each in sections)


def test_the_named_tests_exist() -> None:
    for path, name in TEST.findall(TESTS.read_text("utf-8")):
        source = (ROOT / path).read_text("utf-8")
        assert f"def {name}(" in source, f"{path}::{name}"


def test_each_row_names_a_test_and_not_a_whole_file() -> None:
    for line in TESTS.read_text("utf-8").splitlines():
        if line.startswith("| ") and "`tests/" in line:
            assert all(name for _, name in TEST.findall(line)), line
