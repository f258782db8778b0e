"""Moving a live system from RQ, while RQ's workers run.

The functions stay as they are. What is scheduled in RQ, or delayed by delay-rq or by bide's
`DelayQueue`, moves here with id, due time, meta, description, time-out and retries. A move that is
broken off can be begun again. What is queued there, RQ's worker finishes. It prints:

    in RQ: 1 scheduled, 1 delayed
    moved 2, then 0
    RQ greeted ann
    bide greeted bob
    bide greeted cy
"""

import os
from datetime import timedelta

import redis
import rq

import bide
from bide.contrib.rq import DelayQueue

queue = bide.Queue("greetings")


@queue.task
def greet(name: str) -> str:
    return f"{'RQ' if rq.get_current_job() else 'bide'} greeted {name}"


def move(old: DelayQueue, new: bide.Queue) -> int:
    """Move what is scheduled or delayed; RQ's workers may run, but no scheduler and no Timer."""
    due = {job.id: old.delayed_until(job) for job in old.delayed_jobs()}
    scheduled = old.scheduled_job_registry
    due |= {id: scheduled.get_scheduled_time(id) for id in scheduled.get_job_ids()}
    jobs = [j for j in old.job_class.fetch_many(due, old.connection) if j is not None]
    for job in jobs:
        left, waits = job.retries_left or 0, job.retry_intervals or [0]  # RQ repeats the first
        options: bide.Options = {"at": due[job.id], "job_id": job.id, "meta": job.meta}
        options["description"] = (job.description or "")[:500] or None
        options["timeout"] = "365d" if job.timeout == -1 else job.timeout  # -1: for ever
        options["retry"] = bide.Retry(left, backoff=waits[:1] * (left - len(waits)) + waits[-left:])
        task = ":".join(str(job.func_name).rsplit(".", 1))
        new.enqueue_call(task, job.args, job.kwargs, **options)
        job.delete()  # after the enqueue: a move that is killed here moves the same id again
        old.connection.zrem(old.delay_key, job.id)
    return len(jobs)


def main() -> None:
    old = DelayQueue("greetings", connection=redis.Redis.from_url(os.environ["BIDE_URL"]))
    now = old.enqueue(greet.function, "ann")
    bob = old.enqueue_in(timedelta(seconds=1), greet.function, "bob")
    cy = old.enqueue(greet.function, "cy", delay=1, job_timeout=30, retry=rq.Retry(2))
    print(f"in RQ: {old.scheduled_job_registry.count} scheduled, {len(old.delayed_jobs())} delayed")
    print(f"moved {move(old, queue)}, then {move(old, queue)}")
    rq.SimpleWorker([old], connection=old.connection).work(burst=True, logging_level="ERROR")
    print(now.return_value())
    for job in (bob, cy):
        print(queue.fetch(job.id).wait(timeout=30))
