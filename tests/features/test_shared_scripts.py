"""What workers do for those who only look: load their scripts, and keep the list of queues."""

from __future__ import annotations

from typing import Any

import pytest
import redis

from bide import AccessDenied, Queue
from bide.client.acl import SCRIPTS, rules
from bide.protocol.scripts import load
from bide.worker import heartbeat
from tests.support.workers import at_work, eventually


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "EVERY", 0.02)


def test_a_viewer_calls_scripts_that_a_worker_has_loaded(
    queue: Queue, url: str, raw: redis.Redis
) -> None:
    run: Any = raw.execute_command
    run("ACL", "SETUSER", "onlooker", *rules("viewer", [], "bide"), ">look")
    mark = "&" if "?" in url else "?"
    viewer = Queue(queue.name, url=f"{url}{mark}username=onlooker&password=look")
    raw.script_flush()
    try:
        with pytest.raises(AccessDenied, match="may not load scripts"):
            viewer.counts()
        with at_work(queue):
            for _ in range(2):

                def held() -> bool:
                    shas = [load(script).sha for script in SCRIPTS["viewer"]]
                    return all(raw.script_exists(*shas))

                eventually(held)
                assert viewer.counts().waiting == 0
                raw.script_flush()  # as where the server has restarted
    finally:
        viewer.close()
        raw.acl_deluser("onlooker")


def test_the_list_of_queues_is_whole_again_after_it_was_removed(
    queue: Queue, raw: redis.Redis
) -> None:
    with at_work(queue):
        eventually(lambda: raw.hexists("bide:queues", queue.name))
        raw.delete("bide:queues")
        eventually(lambda: raw.hexists("bide:queues", queue.name))
