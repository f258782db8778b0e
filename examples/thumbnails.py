"""Pictures handled side by side, and one job behind all of them: a fan-in.

The last job gets the results of the others from `queue.parents()`. One picture is broken, so what
was to run if all are done is cancelled, and the alarm goes off. It prints:

    album ready: 6 pictures, 33 KB
    a picture of the broken album failed: there is no picture 13
    broken album: cancelled
"""

import bide

queue = bide.Queue("pictures")


@queue.task
def shrink(number: int) -> int:
    if number == 13:
        raise bide.Fail("there is no picture 13")
    return number + 3  # stands for the size of what it wrote, in KB


@queue.task
def publish() -> str:
    sizes = [job.result or 0 for job in queue.parents()]
    return f"{len(sizes)} pictures, {sum(sizes)} KB"


@queue.task
def alarm() -> str:
    failed = [job for job in queue.parents() if job.state == bide.State.FAILED]
    error = failed[0].error
    return error.message if error else "?"


def enqueue(numbers: list[int]) -> list[bide.Job[object]]:
    pictures = [shrink.prepare(number) for number in numbers]
    flow = bide.fan_in(pictures, completed=publish.prepare(), failed=alarm.prepare())
    return queue.enqueue_many(flow)[-2:]


def main() -> None:
    ready, _ = enqueue([1, 2, 3, 4, 5, 0])
    print("album ready:", ready.wait(timeout=30))
    broken, called = enqueue([11, 12, 13])
    print("a picture of the broken album failed:", called.wait(timeout=30))
    try:
        broken.wait(timeout=30)
    except bide.JobCancelled:
        print("broken album:", broken.state)
