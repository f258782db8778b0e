"""The page of the command line says for which states commands are, and which fields JSON has.

That it has each command, option and setting, `tests/unit/test_cli_docs.py` says.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import redis

import bide
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.queues import RunningTask, WorkerReport, heartbeat
from bide.protocol.keys import keys_of
from bide.queue.select import VERBS
from tests.docs.names import passages
from tests.docs.pages import ROOT
from tests.support.console import bide as command

PAGE: Final = (ROOT / "docs" / "cli.md").read_text("utf-8")
SECTIONS: Final = {
    heading.strip(): " ".join(text.split())
    for heading, text in re.findall(r"^### (.*)\n((?:(?!##).*\n)*)", PAGE, re.MULTILINE)
}


def test_a_change_is_for_the_states_that_the_table_says() -> None:
    rows: dict[str, list[str]] = {}
    for cell in passages(PAGE):
        if cell.first.startswith("bide jobs "):
            rows.setdefault(cell.first, []).append(cell.text)
    assert len(rows) == 5
    for first, (_, _, possible, usual) in rows.items():
        verb = VERBS[first.removeprefix("bide jobs ")]
        assert {*possible.split(", ")} == {*verb.possible}, first
        assert {*usual.split(", ")} == {*verb.usual}, first


def test_purpose_usage_and_options_are_those_of_the_command_line() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "make_cli.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for heading in SECTIONS:
        if heading.startswith("bide "):
            assert f"### {heading}\n\n<!-- generated: {heading} -->\n" in PAGE


# -- JSON


def loud(text: str) -> None:
    job = bide.current_job()
    job.progress(0.5, "half way")
    job.log("a line")
    raise ValueError(text)


@pytest.fixture
def url(one_url: str) -> Iterator[str]:
    """A server with jobs, a group, a schedule, events, and a worker that is said to live."""
    queue = bide.Queue("mail", url=one_url)
    with queue.events(name="page"):
        failed = queue.enqueue(loud, "oh", job_id="failed")
        queue.enqueue("x:later", delay="1h", job_id="later", group="g", unique=bide.Unique())
        queue.fetch("later").reschedule("2h")
        bide.Worker(queue, modules=__name__).run(burst=True)
    assert failed.refresh().state == "failed"
    queue.schedules.upsert("hourly", "x:later", every="1h")
    doing = [RunningTask("mail", "x", "x:later", 1)]
    about = WorkerReport("host", 1, ["mail"], doing=doing, tasks=["x:later"])
    queue._client.run(heartbeat(keys_of(None, "bide"), "worker.1", about))
    queue.enqueue("x:held", job_id="held")
    queue._client.run(worker_commands.claim(queue.keys, "worker.1", 1, 1, 60_000_000, 0))
    yield one_url
    queue.close()


CALLS: Final = {
    "bide enqueue": "enqueue x:y 1 -q mail --no-check",
    "bide top": "top --once",
    "bide jobs ls": "jobs ls -q mail",
    "bide jobs show": "jobs show failed later",
    "bide upcoming": "upcoming",
    "bide cron ls": "cron ls",
    "bide cron next": "cron next",
    "bide events": "events -q mail --after 1-1 --timeout 0",
    "bide queues ls": "queues ls",
    "bide workers": "workers",
    "bide tasks": "tasks",
    "Jobs by id or in bulk": "jobs cancel later; jobs delete -q mail -s failed --dry-run",
    "bide queues groups": "queues groups mail",
    "bide queues limit": "queues limit mail; queues limit mail --group g --rate 1/s",
    "bide health": "health -q mail; health",
    "bide doctor": "doctor",
    "bide acl": "acl",
    "bide fsck": "fsck",
    "bide script": "script enqueue -q mail",
}
"""For each section that tells of JSON, what prints it."""


def test_every_section_that_tells_of_json_is_tried() -> None:
    assert {heading for heading in SECTIONS if _fields(heading)} == CALLS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("heading", CALLS)
def test_json_has_the_fields_that_the_page_says(
    heading: str, url: str, direct: redis.Redis, tmp_path: Path
) -> None:
    if heading == "bide health":
        direct.sadd("rq:queues", "rq:queue:mail")
        direct.zadd("rq:delay_queue:mail", {"far": 9e9})
    if heading == "bide fsck":
        direct.zrem("bide:{mail}:failed", "failed")
    printed = [
        json.loads(line)
        for call in CALLS[heading].split("; ")
        for line in command(tmp_path, *shlex.split(call), "--json", url=url).stdout.splitlines()
    ]
    shapes = {keys for value in printed for keys in _shapes(value)}
    in_lists = frozenset(_fields("bide jobs ls")[0])
    for fields in _fields(heading):
        assert any(set(fields) in (shape, shape - in_lists) for shape in shapes), fields


def _fields(heading: str) -> list[list[str]]:
    """The lists of fields in what a section tells of JSON."""
    _, _, told = SECTIONS[heading].partition("JSON:")
    return [span.split() for span in re.findall(r"`((?!bide)\w+(?: \w+)+)`", told)]


def _shapes(value: Any) -> Iterator[frozenset[str]]:
    """The keys of each object in a document."""
    if isinstance(value, dict):
        yield frozenset(value)
        value = [*value.values()]
    for each in value if isinstance(value, list) else ():
        yield from _shapes(each)
