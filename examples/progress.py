"""A long job that says how far it is, watched and cancelled from another process.

Nobody can stop a plain function: it has to look. It does so once a row, and that costs nothing. It
prints:

    importing ...
    asked to stop: True
    cancelled at ... of 100000
"""

import time

import bide

queue = bide.Queue("imports")


@queue.task(timeout="1h")
def import_rows(count: int) -> int:
    job = bide.current_job()
    for row in range(count):
        job.raise_if_cancelled()
        job.progress(row / count, f"{row} of {count}")
        time.sleep(0.005)  # stands for the work of one row
    return count


def main() -> None:
    job = import_rows.enqueue(100_000)
    while job.progress is None:
        time.sleep(0.05)
        job.refresh()
    print("importing", f"{job.progress.fraction:.4%}")
    print("asked to stop:", job.cancel())
    try:
        job.wait(timeout=30)
    except bide.JobCancelled:
        print("cancelled at", job.progress.text if job.progress else "the start")
