"""Delay for RQ: an unmodified RQ worker runs what a Timer moves.

In earnest the Timer is `bide rq-timer mail`, and the worker `rq worker mail`. It prints:

    3 wait
    bob is to be reminded at last: False
    to cy, after dan
    to dan
    to eve, a moment after dan
"""

import os
import threading

import redis
import rq

from bide.contrib.rq import DelayQueue, Timer

queue = DelayQueue("mail", redis.Redis.from_url(os.environ["BIDE_URL"]))


def letter(text: str) -> str:
    return f"to {text}"


def main() -> None:
    # Every option of RQ's means what it means without a delay.
    bob = queue.enqueue(letter, "bob", delay="1h", description="a reminder")
    dan = queue.enqueue(letter, "dan", delay=0.3, result_ttl=60)
    eve = queue.enqueue(letter, "eve, a moment after dan", delay=0.2, depends_on=dan)
    cy = queue.enqueue(letter, "cy, after dan", delay="1d", ttl=60)
    print(f"{len(queue.delayed_jobs())} wait")

    queue.reschedule(cy, "600ms")  # whoever asks is told whether it was still delayed
    bob.cancel()  # RQ's own
    print(f"bob is to be reminded at last: {queue.cancel_delayed(bob)}")

    timer = Timer(queue)
    moving = threading.Thread(target=timer.work)
    moving.start()
    worker = rq.SimpleWorker([queue], connection=queue.connection)
    worker.work(max_idle_time=2, logging_level="ERROR")
    timer.stop()
    moving.join()
    for job in (cy, dan, eve):
        print(job.return_value())
