"""A price that is looked up on a schedule, and a report that is due on weekdays at nine.

The worker sets what the module declares when it starts; no other process is needed. A third
schedule is stored by a program, for a customer of its own. It prints:

    looked 3 times, 200 ms apart: True
    report: 0 9 * * 1-5 Europe/Paris
    2030-01-01 08:00, 2030-01-02 08:00, 2030-01-03 08:00
    order 7 is watched until its times are over: 2 looks
"""

import time
from datetime import UTC, datetime, timedelta

import bide

queue = bide.Queue("prices")


@queue.every("200ms", missed="all", limit=3, name="look")
def look(order: int = 0) -> int:
    time_of_schedule = bide.current_job().schedule_time
    assert time_of_schedule is not None
    return round(time_of_schedule.timestamp() * 1000)


@queue.cron("0 9 * * 1-5", tz="Europe/Paris", name="report", start=datetime(2030, 1, 1, tzinfo=UTC))
def report() -> None: ...


def wait_for(name: str) -> bide.Schedule:
    """Schedules are set by the worker, which may be starting yet."""
    while True:
        found = {schedule.name: schedule for schedule in queue.schedules.all()}
        if name in found and (found[name].over or name == "report"):
            return found[name]
        time.sleep(0.05)


def results(name: str, count: int) -> list[int]:
    while len(jobs := [job for job in queue.jobs("completed") if job.schedule == name]) < count:
        time.sleep(0.05)
    return sorted(job.result or 0 for job in jobs)


def main() -> None:
    wait_for("look")
    first, second, third = results("look", 3)
    print("looked 3 times, 200 ms apart:", third - second == second - first == 200)

    print("report:", wait_for("report").when)
    print(", ".join(f"{at:%F %R}" for at in queue.schedules.next("report", 3)))

    moments = [datetime.now(UTC) + timedelta(milliseconds=ms) for ms in (100, 200)]
    queue.schedules.upsert("order-7", look, [7], at=moments, missed="all")
    wait_for("order-7")
    print(f"order 7 is watched until its times are over: {len(results('order-7', 2))} looks")
