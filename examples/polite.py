"""Calls to a service that allows so many in a second, and says "not now" when it is busy.

The limits are set once, for all workers. A job that is told "not now" holds the whole queue for as
long as the service asks, and none of the others runs into it. It prints:

    10 calls were answered, 1 was told: not now
    no two of them within 20 ms
    none in the half second after "not now"
"""

from itertools import pairwise

import bide

queue = bide.Queue("service")


def service(number: int) -> str:
    """What another company runs: it is busy when it is asked for 3 for the first time."""
    job = bide.current_job()
    if number == 3 and job.due == job.first_due:
        raise ConnectionRefusedError("429 Too Many Requests, Retry-After: 0.5")
    return f"answer {number}"


@queue.task
async def call(number: int) -> float:
    asked_at = bide.current_job().token / 1e6  # when the job was taken, by the server's clock
    try:
        service(number)
    except ConnectionRefusedError as refused:
        bide.current_job().log(f"{asked_at} not now")
        raise bide.PauseQueue(str(refused).rpartition(" ")[2]) from refused
    return asked_at


def main() -> None:
    queue.configure(rate="50/s", concurrency=1)
    jobs = [call.enqueue(number) for number in range(10)]
    asked = sorted(job.wait(timeout=30) for job in jobs)
    refused = [float(line.text.split()[0]) for job in jobs for line in job.refresh().logs]
    print(f"{len(asked)} calls were answered, {len(refused)} was told: not now")
    both = sorted([*asked, *refused])
    if min(later - one for one, later in pairwise(both)) > 0.0199:
        print("no two of them within 20 ms")
    if not any(0 < at - refused[0] < 0.5 for at in asked):
        print('none in the half second after "not now"')
