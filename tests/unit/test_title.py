"""What a worker's title says."""

from __future__ import annotations

from bide.worker.metrics import title


def test_an_idle_worker_says_what_it_serves() -> None:
    assert title(["mail", "low"], []) == "bide worker mail, low: idle"


def test_tasks_are_counted_and_the_most_frequent_named() -> None:
    running = ["a:x", "a:y", "a:x", "a:z", "a:u", "a:v", "a:z"]
    assert title(["mail"], running) == "bide worker mail: 2 a:x, 2 a:z, a:y, 2 more"
