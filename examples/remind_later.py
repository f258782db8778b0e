"""A reminder that puts itself off while its reader is busy, and can be moved by hand.

`Snooze` runs a job later as if this run had not been: it uses no attempt, and a retry policy does
not count it. It prints:

    bob: water the plants (attempt 1)
    ann: call the bank (attempt 1)
      busy, again in a moment
"""

from datetime import UTC, datetime, timedelta

import bide

queue = bide.Queue("reminders")


@queue.task
def remind(who: str, what: str, busy_until: datetime | None = None) -> str:
    job = bide.current_job()
    if busy_until is not None and datetime.now(UTC) < busy_until:
        job.log("busy, again in a moment")
        raise bide.Snooze(at=busy_until)
    return f"{who}: {what} (attempt {job.attempt})"


def main() -> None:
    # Due in an hour, and then Bob says: remind me sooner.
    moved = remind.later("1h").enqueue("bob", "water the plants")
    moved.reschedule("200ms")
    print(moved.wait(timeout=30))

    # Due at once, but Ann is in a meeting for half a second.
    meeting = datetime.now(UTC) + timedelta(seconds=0.5)
    snoozed = remind.enqueue("ann", "call the bank", meeting)
    print(snoozed.wait(timeout=30))
    for line in snoozed.logs:
        print(f"  {line.text}")
