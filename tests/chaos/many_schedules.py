"""Every verb of schedules, on a queue that has ten thousand of them, all due."""

from __future__ import annotations

from typing import Any

from bide.model.payload.body import Body, encode_body, of_schedule
from bide.model.schedule import MOST_AT, Missed, Timing
from bide.protocol.commands import fsck as fsck_commands
from bide.protocol.commands import schedules as schedule_commands
from bide.protocol.commands.schedules import Draft
from bide.protocol.keys import keys_of

KEYS = keys_of("mail")
MANY = 10_000
BODY = encode_body(Body("app:task", ["x" * 400]))


def draft(name: str, timing: Timing, missed: Missed = "all", body: bytes = BODY) -> Draft:
    return Draft(name, timing, missed, 1_000_000, 5, "app:task", of_schedule(body, name))


def time_schedules(full: Any) -> None:
    """`full`: the queue, and the stopwatch."""
    cron = Timing(cron="* * * * *", tz="UTC")
    moments = Timing(at_us=tuple(4_000_000_000_000_000 + n for n in range(MOST_AT)))
    every = Timing(every_us=10_000, limit=10**9)

    def put(name: str, timing: Timing, body: bytes = BODY) -> None:
        given = draft(name, timing, body=body)
        full.client.run(schedule_commands.set_schedule(KEYS, given))

    for name, timing in (("cron", cron), ("moments", moments), ("every", every)):
        put(name, timing)
    record: Any = full.direct.hget(KEYS["schedule"], "every")
    names = [f"n{n}" for n in range(MANY)]
    full.direct.hset(KEYS["schedule"], mapping=dict.fromkeys(names, record))
    full.direct.hset(KEYS["scheduled"], mapping=dict.fromkeys(names, BODY))
    full.direct.zadd(KEYS["schedules"], dict.fromkeys(names, 1))

    def change() -> None:
        page = full.client.run(schedule_commands.read_schedules(KEYS, ["cron", "moments"]))
        full.client.run(schedule_commands.refills(KEYS, page)[0])
        for name in ("moments", "n1"):
            full.client.run(schedule_commands.pause_schedule(KEYS, name, True))
            full.client.run(schedule_commands.pause_schedule(KEYS, name, False))
            full.seq += 1
            full.client.run(schedule_commands.run_schedule(KEYS, name, f"{name}@{full.seq}"))
        put("new", moments)
        full.client.run(schedule_commands.remove_schedules(KEYS, ["new"]))

    def check() -> None:
        full.direct.hdel(KEYS["scheduled"], *names[-200:])
        for part in fsck_commands.SCHEDULES:
            full.client.run(fsck_commands.look_at_schedules(KEYS, part, fsck_commands.BEGIN, True))

    full.time("fire what is due of many", lambda: full.claim(0))
    full.time(
        "read schedules",
        lambda: full.client.run(schedule_commands.read_page(KEYS, fsck_commands.BEGIN)),
    )
    full.time("change schedules", change)
    full.time("check schedules", check)
    large = encode_body(Body("app:task", ["x" * 900_000]))
    full.direct.delete(KEYS["schedules"])
    for n in range(30):
        put(f"large-{n}", every, large)
    full.direct.zadd(KEYS["schedules"], {f"large-{n}": 1 for n in range(30)})
    full.time("fire large bodies", lambda: full.claim(0))
    full.direct.delete(*(KEYS[name] for name in ("schedules", "schedule", "scheduled")))
