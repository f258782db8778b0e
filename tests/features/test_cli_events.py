"""Events from the shell, and every state as it is shown there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bide import Queue
from bide.cli.overview import _remark
from bide.model.job import Event, State
from tests.support import jobs
from tests.support.console import CTRL_C, at_terminal, error_of, said
from tests.support.console import bide as run_bide
from tests.support.workers import at_work, burst, eventually


def test_the_shell_follows_events_as_text_and_as_json(home: Path, queue: Queue) -> None:
    with queue.events(name="keeps") as events:
        start = events.after
        queue.enqueue(jobs.fail, "no luck")
        queue.enqueue(jobs.half_way)
        queue.enqueue(jobs.add, 1, 2, delay=60)
        burst(queue, concurrency=1)
        queue.purge()
    args = ("events", "-q", "work", "--after", start, "--timeout", "0")
    text = said(run_bide(home, *args, url=queue.url)).splitlines()
    assert [line.split("  ")[1].strip() for line in text][:3] == ["added"] * 3
    assert "due in 60s" in text[2]
    assert any("failed" in line and "attempt 1 on" in line and "no luck" in line for line in text)
    assert any("progress" in line and "50% half way" in line for line in text)
    assert text[-1].endswith("purged       1 job")
    assert all("  tests.support.jobs:fail" in line for line in text if "no luck" in line)
    assert "  tests.support.jobs:add  " not in text[2], "it was purged, and nobody knows its task"
    done = run_bide(home, *args, "--json", "-k", "failed", "-k", "progress", url=queue.url)
    documents = [json.loads(line) for line in said(done).splitlines()]
    assert [d["kind"] for d in documents] == ["failed", "progress"]
    assert documents[0]["error"]["message"] == "no luck"
    assert [d["task"].split(":")[1] for d in documents] == ["fail", "half_way"]
    assert documents[1]["progress"] == {"fraction": 0.5, "text": "half way"}
    behind = run_bide(home, *args[:4], documents[0]["id"], *args[5:], "--json", url=queue.url)
    assert json.loads(behind.stdout.splitlines()[0])["id"] > documents[0]["id"]
    gap = run_bide(home, "events", "-q", "work", "--after", "1-1", "--timeout", "0", url=queue.url)
    assert "were lost" in said(gap)


def test_ctrl_c_ends_it_well_and_says_how_to_go_on(home: Path, queue: Queue) -> None:
    """What is shown first was there before; then it waits."""
    with queue.events(name="keeps") as events:
        start = events.after
        queue.enqueue(jobs.add, 1, 2, delay=60)
    shown = at_terminal(
        home, "events", "-q", "work", "--name", "keeps", "--after", start, url=queue.url,
        types={"added": CTRL_C.decode()}, columns=200,
    )  # fmt: skip
    assert shown.code == 0
    assert "To continue from here: bide events -q work --name keeps --after" in shown.text


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("--after", "x"), "is not the id of an event"),
        (("-k", "complete"), "complete"),
        (("--name", "a b"), "The listener's name"),
        (("--timeout", "soon"), "is not a duration"),
        (("-q", "a b"), "queue name"),
    ],
)
def test_a_command_line_that_cannot_be_meant(
    home: Path, one_url: str, args: tuple[str, ...], sentence: str
) -> None:
    assert sentence in error_of(run_bide(home, "events", *args, url=one_url), 2)


# -- every state can be seen


def test_the_jobs_in_each_state_are_counted_and_listed(home: Path, queue: Queue) -> None:
    queue.enqueue(jobs.add, 1, 2)
    queue.enqueue(jobs.fail, "no luck")
    burst(queue)
    queue.enqueue(jobs.add, 1, 2, delay=60, job_id="later")
    queue.enqueue_call(jobs.add, args=(1, 2), depends_on="later")
    queue.enqueue(jobs.add, 1, 2).cancel()
    with at_work(queue, concurrency=1):
        queue.enqueue(jobs.wait_thread)
        eventually(lambda: queue.counts().active)
        queue.enqueue(jobs.add, 1, 2)
        counts = queue.counts()
        for state in State:
            (job,) = queue.jobs(state)
            assert job.state is state
            assert getattr(counts, state) == 1
            args = ("jobs", "ls", "-q", "work", "-s", str(state), "--json")
            listed = json.loads(said(run_bide(home, *args, url=queue.url)))["jobs"]
            assert [(j["id"], j["state"]) for j in listed] == [(job.id, state)]


@pytest.mark.parametrize(
    ("count", "says"),
    [
        (1, "1 event was lost before 5-0"),
        (2000, "2,000 events were lost before 5-0"),
        (0, "events were lost before 5-0"),  # how many is not known
    ],
)
def test_a_gap_says_how_many_events_were_lost(count: int, says: str) -> None:
    assert _remark(Event("5-0", "gap", count=count)) == says
