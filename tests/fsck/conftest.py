"""A queue that holds something in each of its keys, so that each can be corrupted by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from bide import sync
from bide.cli.fsck import Found, look
from bide.cli.site import Site
from bide.keys import DUE_SETS, GLOBAL, LAYOUT, keys_of
from bide.ops import consume, groups, inspect, listen, manage, produce, registry, schedules
from bide.ops.consume import Said, Settle
from bide.ops.produce import Prepared
from bide.ops.registry import About
from bide.ops.schedules import Draft
from bide.payload.codec import Body, encode_body
from bide.payload.recast import of_schedule
from bide.retention import Retention
from bide.schedule import Timing
from tests.faults.crew import Crew
from tests.faults.legal import Holding, hold
from tests.users import as_role

BODY = encode_body(Body("app.tasks:send"))
KEYS, EVERYWHERE = keys_of("mail"), keys_of(None)
LEASE_US = 600_000_000
ERROR = b'{"type":"ValueError","message":"no"}'


class Full:
    """The queue, and who looks at it: a user with the rights of an operator."""

    def __init__(self, url: str, direct: redis.Redis) -> None:
        self.direct = direct
        self.client = sync.Client(url)
        self.site = Site(as_role(url, direct, "operator"), None)
        self.tokens: dict[str, int] = {}

    def close(self) -> None:
        self.client.close()
        self.site.client.close()

    def run(self, command: Any) -> Any:
        return self.client.run(command)

    def add(self, *ids: str, when: str = "+0", priority: int = 5) -> None:
        self.run(produce.enqueue(KEYS, [Prepared(id, when, priority, BODY) for id in ids]))

    def add_to(self, group: str, *ids: str, when: str = "+0", priority: int = 5) -> None:
        jobs = [Prepared(id, when, priority, BODY, terms=f"g={group}") for id in ids]
        self.run(produce.enqueue(KEYS, jobs))

    def claim(self, worker: str, count: int) -> list[str]:
        jobs = self.run(consume.claim(KEYS, worker, 1, count, LEASE_US, 0)).jobs
        self.tokens |= {job.id: job.token for job in jobs}
        return [job.id for job in jobs]

    def settle(self, id: str, outcome: Any, when: str = "", data: bytes = b"") -> str:
        settles = [Settle(id, self.tokens[id], outcome, when, data)]
        (word,) = self.run(consume.settle(KEYS, settles))
        return str(word)

    def fill(self) -> None:
        """Something in each key, and each as bide leaves it."""
        self.run(manage.configure(KEYS, Retention()))
        self.add("run-0", "run-asked", "done", "done-kept", "bad", "again")
        assert len(self.claim("w1", 6)) == 6
        self.run(consume.note(KEYS, [Said("run-0", self.tokens["run-0"], "P", b'[0.5,""]')]))
        self.run(manage.cancel(KEYS, ["run-asked"]))
        self.run(listen.listen(KEYS, "audit", "-"))
        self.settle("done", "complete", data=b"42")
        self.settle("done-kept", "complete", "+864000000000", b"43")
        self.settle("bad", "fail", data=ERROR)
        self.add("back")
        self.add("back-9", priority=9)
        self.run(manage.cancel(KEYS, ["back", "back-9"]))
        self.add_to("g", "in-run", "in-set-aside")
        assert self.claim("w2", 1) == ["in-run"]
        self.claim("w3", 1)
        self.run(groups.configure(KEYS, "limited", rate="1 3600000000 1"))
        self.add_to("limited", "in-turn", priority=9)
        (job,) = self.run(consume.claim(KEYS, "w5", 1, 1, LEASE_US, 1)).jobs
        assert job.id == "in-turn"
        self.run(consume.settle(KEYS, [Settle(job.id, job.token, "complete", "", b"")]))
        self.add("aside", "aside-2")
        self.run(manage.empty(KEYS, "this"))
        self.settle("again", "retry", "+3600000000", ERROR)
        self.add("wait")
        self.add("wait-9", priority=9)
        self.add("later", when="+7200000000")
        self.add_to("g", "in-wait", "in-wait-2")
        self.add_to("idle", "in-later", when="+7200000000")
        self.add_to("limited", "in-turn-2", priority=9)
        for id in ("first", "second"):
            terms = "k=app.tasks:send: f=d7200000000,0"
            self.run(produce.enqueue(KEYS, [Prepared(id, "+0", 5, BODY, terms=terms)]))
        self.add("base", when="+7200000000")
        self.run(manage.reschedule(KEYS, ["base"], "+7100000000"))
        waiting = Prepared("child", "+0", 5, BODY, terms="d=-", parents=("base",))
        far = Prepared("far", "+0", 5, BODY, terms="d=-", parents=("{other}x",))
        self.run(produce.enqueue(KEYS, [waiting, far]))
        self.run(inspect.watch(KEYS, "later", 60_000_000))
        self.run(inspect.watch(KEYS, "run-0", 60_000_000))
        for name in ("nightly", "over", "paused"):
            body = of_schedule(BODY, name)
            timing = Timing(at_us=(1,)) if name == "over" else Timing(every_us=86_400_000_000)
            draft = Draft(name, timing, "once", 0, 5, "app.tasks:send", body)
            self.run(schedules.set_schedule(KEYS, draft))
        self.run(schedules.pause_schedule(KEYS, "paused", True))
        self.run(registry.register(EVERYWHERE, ["mail"]))
        self.run(registry.heartbeat(EVERYWHERE, "w1", About("host")))

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
def crew(tmp_path: Path) -> Iterator[Crew]:
    with Crew(tmp_path) as crew:
        yield crew
