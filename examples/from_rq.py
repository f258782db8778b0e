"""Moving a live system from RQ, while both run.

The functions stay as they are. What is scheduled in RQ moves here with its id and its moment, also
if the move is broken off and begun again; what is queued there, RQ's worker finishes. It prints:

    in RQ: 1 queued, 2 scheduled
    moved 2, then 0
    in RQ: 0 queued, 0 scheduled
    RQ greeted ann
    bide greeted bob
    bide greeted cy
"""

import os
from datetime import timedelta

import redis
import rq
import rq.job

import bide

queue = bide.Queue("greetings")


@queue.task
def greet(name: str) -> str:
    return f"{'RQ' if rq.get_current_job() else 'bide'} greeted {name}"


def move(old: rq.Queue, new: bide.Queue) -> int:
    """Move what is scheduled; no RQ scheduler may run meanwhile, RQ workers may."""
    ids = old.scheduled_job_registry.get_job_ids()
    jobs = rq.job.Job.fetch_many(ids, connection=old.connection)
    for id, job in zip(ids, jobs, strict=True):
        if job is None:  # RQ's registry outlived it
            continue
        due = old.scheduled_job_registry.get_scheduled_time(job)
        module, _, function = str(job.func_name).rpartition(".")
        # First here, then not there: who is killed in between moves it again, under the same id.
        new.enqueue_call(f"{module}:{function}", job.args, job.kwargs, at=due, job_id=id)
        job.delete()
    return len(ids)


def main() -> None:
    old = rq.Queue("greetings", connection=redis.Redis.from_url(os.environ["BIDE_URL"]))
    now = old.enqueue(greet.function, "ann")
    later = [old.enqueue_in(timedelta(seconds=1), greet.function, name) for name in ("bob", "cy")]

    print(f"in RQ: {old.count} queued, {old.scheduled_job_registry.count} scheduled")
    print(f"moved {move(old, queue)}, then {move(old, queue)}")
    rq.SimpleWorker([old], connection=old.connection).work(burst=True, logging_level="ERROR")
    print(f"in RQ: {old.count} queued, {old.scheduled_job_registry.count} scheduled")
    print(now.return_value())
    for job in later:
        print(queue.fetch(job.id).wait(timeout=30))
