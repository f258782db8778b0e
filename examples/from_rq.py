"""Moving a live system from RQ, while RQ's workers run.

Jobs that are scheduled, or delayed by a `DelayQueue`, move with id, due time, meta, description,
time-out, ttl and retries. RQ keeps the jobs that only RQ can run. It prints:

    moved 2, then 0
    bide greeted bob
    bide greeted cy
"""

import os
from contextlib import suppress
from datetime import timedelta

import redis
import rq

import bide
from bide.contrib.rq import DelayQueue

queue = bide.Queue("greetings")


@queue.task
def greet(name: str) -> str:
    return f"{'RQ' if rq.get_current_job() else 'bide'} greeted {name}"


def stays(job: rq.job.Job) -> bool:
    """Whether RQ must run it: callbacks, webhooks, repeats, a rate limit, dependents, an object."""
    kept = [v for k, v in job.to_dict().items() if k.endswith(("back_name", "hooks", "limit_key"))]
    return any([*kept, job.repeats_left, job.dependent_ids, job.instance is not None])


def move(old: DelayQueue, new: bide.Queue) -> int:
    """Move what is scheduled or delayed; RQ's workers may run, but no scheduler and no Timer."""
    due, moved = {job.id: old.delayed_until(job) for job in old.delayed_jobs()}, 0
    scheduled = old.scheduled_job_registry
    due |= {id: scheduled.get_scheduled_time(id) for id in scheduled.get_job_ids()}
    for job in [j for j in old.job_class.fetch_many(due, old.connection) if j and not stays(j)]:
        left, waits = job.retries_left or 0, job.retry_intervals or [0]  # RQ repeats the first
        options = bide.Options(at=due[job.id], job_id=job.id, meta=job.meta, expires=job.ttl)
        options["description"] = (job.description or "")[:500] or None
        options["timeout"] = "365d" if job.timeout == -1 else job.timeout  # -1: for ever
        options["retry"] = bide.Retry(left, backoff=waits[:1] * (left - len(waits)) + waits[-left:])
        with suppress(bide.PayloadError):  # the arguments need pickle: the job stays
            name = ":".join(str(job.func_name).rsplit(".", 1))
            new.enqueue_call(name, job.args, job.kwargs, **options)
            job.delete()  # after the enqueue: a move that is killed here moves the same id again
            old.connection.zrem(old.delay_key, job.id)
            moved += 1
    return moved


def main() -> None:
    old = DelayQueue("greetings", connection=redis.Redis.from_url(os.environ["BIDE_URL"]))
    bob = old.enqueue_in(timedelta(seconds=1), greet.function, "bob")
    cy = old.enqueue(greet.function, "cy", delay=1, job_timeout=30, retry=rq.Retry(2))
    print(f"moved {move(old, queue)}, then {move(old, queue)}")
    print(*(queue.fetch(job.id).wait(timeout=30) for job in (bob, cy)), sep="\n")
