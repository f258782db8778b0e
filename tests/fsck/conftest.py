"""A queue that holds something in each of its keys, so that each can be corrupted by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from bide.cli.health import Found, look
from bide.client import blocking
from bide.model.limits import Retention
from bide.model.payload.body import Body, encode_body, of_schedule
from bide.model.schedule import Timing
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands import schedules as schedule_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.commands.queues import WorkerReport
from bide.protocol.commands.schedules import Draft
from bide.protocol.commands.worker import JobNote, Settle
from bide.protocol.keys import DUE_SETS, GLOBAL, LAYOUT, keys_of
from bide.views._sync import Site
from tests.support.invariants import Holding, hold
from tests.support.users import as_role
from tests.support.worker_pool import WorkerPool

BODY = encode_body(Body("app.tasks:send"))
KEYS, EVERYWHERE = keys_of("mail"), keys_of(None)
LEASE_US = 600_000_000
ERROR = b'{"type":"ValueError","message":"no"}'


class Full:
    """The queue, and who looks at it: a user with the permissions of an operator."""

    def __init__(self, url: str, direct: redis.Redis) -> None:
        self.direct = direct
        self.client = blocking.Client(url)
        self.site = Site(as_role(url, direct, "operator"), None)
        self.tokens: dict[str, int] = {}

    def close(self) -> None:
        self.client.close()
        self.site.client.close()

    def run(self, command: Any) -> Any:
        return self.client.run(command)

    def add(self, *ids: str, when: str = "+0", priority: int = 5) -> None:
        self.run(enqueue_commands.enqueue(KEYS, [Prepared(id, when, priority, BODY) for id in ids]))

    def add_to(self, group: str, *ids: str, when: str = "+0", priority: int = 5) -> None:
        jobs = [Prepared(id, when, priority, BODY, constraints=f"g={group}") for id in ids]
        self.run(enqueue_commands.enqueue(KEYS, jobs))

    def claim(self, worker: str, count: int) -> list[str]:
        jobs = self.run(worker_commands.claim(KEYS, worker, 1, count, LEASE_US, 0)).jobs
        self.tokens |= {job.id: job.token for job in jobs}
        return [job.id for job in jobs]

    def settle(self, id: str, outcome: Any, when: str = "", data: bytes = b"") -> str:
        settles = [Settle(id, self.tokens[id], outcome, when, data)]
        (word,) = self.run(worker_commands.settle(KEYS, settles))
        return str(word)

    def fill(self) -> None:
        """Something in each key, and each as bide leaves it."""
        self.run(job_commands.configure(KEYS, Retention()))
        self.add("run-0", "run-asked", "done", "done-kept", "bad", "again")
        assert len(self.claim("w1", 6)) == 6
        self.run(
            worker_commands.add_notes(
                KEYS, [JobNote("run-0", self.tokens["run-0"], "P", b'[0.5,""]')]
            )
        )
        self.run(job_commands.cancel(KEYS, ["run-asked"]))
        self.run(job_commands.listen(KEYS, "audit", "-"))
        self.settle("done", "complete", data=b"42")
        self.settle("done-kept", "complete", "+864000000000", b"43")
        self.settle("bad", "fail", data=ERROR)
        self.add("back")
        self.add("back-9", priority=9)
        self.run(job_commands.cancel(KEYS, ["back", "back-9"]))
        self.add_to("g", "in-run", "in-set-aside")
        assert self.claim("w2", 1) == ["in-run"]
        self.claim("w3", 1)
        self.run(queue_commands.configure(KEYS, "limited", rate="1 3600000000 1"))
        self.add_to("limited", "in-turn", priority=9)
        (job,) = self.run(worker_commands.claim(KEYS, "w5", 1, 1, LEASE_US, 1)).jobs
        assert job.id == "in-turn"
        self.run(worker_commands.settle(KEYS, [Settle(job.id, job.token, "complete", "", b"")]))
        self.add("aside", "aside-2")
        self.run(job_commands.purge(KEYS, "this"))
        self.settle("again", "retry", "+3600000000", ERROR)
        self.add("wait")
        self.add("wait-9", priority=9)
        self.add("later", when="+7200000000")
        self.add_to("g", "in-wait", "in-wait-2")
        self.add_to("idle", "in-later", when="+7200000000")
        self.add_to("limited", "in-turn-2", priority=9)
        for id in ("first", "second"):
            constraints = "k=app.tasks:send: f=d7200000000,0"
            self.run(
                enqueue_commands.enqueue(
                    KEYS, [Prepared(id, "+0", 5, BODY, constraints=constraints)]
                )
            )
        self.add("base", when="+7200000000")
        self.run(job_commands.reschedule(KEYS, ["base"], "+7100000000"))
        waiting = Prepared("child", "+0", 5, BODY, constraints="d=-", parents=("base",))
        far = Prepared("far", "+0", 5, BODY, constraints="d=-", parents=("{other}x",))
        self.run(enqueue_commands.enqueue(KEYS, [waiting, far]))
        self.run(job_commands.await_end(KEYS, "later", 60_000_000))
        self.run(job_commands.await_end(KEYS, "run-0", 60_000_000))
        for name in ("nightly", "over", "paused"):
            body = of_schedule(BODY, name)
            timing = Timing(at_us=(1,)) if name == "over" else Timing(every_us=86_400_000_000)
            draft = Draft(name, timing, "once", 0, 5, "app.tasks:send", body)
            self.run(schedule_commands.set_schedule(KEYS, draft))
        self.run(schedule_commands.pause_schedule(KEYS, "paused", True))
        self.run(queue_commands.register_queues(EVERYWHERE, ["mail"]))
        self.run(queue_commands.heartbeat(EVERYWHERE, "w1", WorkerReport("host")))

    def look(self, repair: bool = False) -> list[Found]:
        return list(look(self.site, (), repair))

    def found(self, repair: bool = False) -> set[tuple[str, str]]:
        return {(each.finding.kind, each.finding.id) for each in self.look(repair)}

    def holding(self) -> Holding:
        return hold(self.direct, "mail")

    def do(self, *words: Any) -> Any:
        """A command of the server's; `@due:5` stands for a key, `%60` for in a minute (µs)."""
        run: Any = self.direct.execute_command
        return run(*map(self._meant, words))

    def _meant(self, word: Any) -> Any:
        if isinstance(word, str) and word[:1] == "@":
            return key(word[1:])
        if isinstance(word, str) and word[:1] == "%":
            seconds, micros = self.direct.time()
            return (seconds + int(word[1:])) * 1_000_000 + micros
        return word


def key(name: str) -> str:
    """The key behind a name of the layout."""
    name, _, which = name.partition(":")
    if name in GLOBAL:
        return EVERYWHERE[name]
    fan = LAYOUT[name].fan
    return KEYS.names[name][fan.index(which)] if fan else KEYS[name]


assert LAYOUT["due"].fan == DUE_SETS


@pytest.fixture
def full(one_url: str, direct: redis.Redis) -> Iterator[Full]:
    full = Full(one_url, direct)
    full.fill()
    yield full
    full.close()


@pytest.fixture
def worker_pool(tmp_path: Path) -> Iterator[WorkerPool]:
    with WorkerPool(tmp_path) as worker_pool:
        yield worker_pool
