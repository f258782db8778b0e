"""A search index that follows its documents: many changes, few runs, and the last one never lost.

A document that is saved again and again is indexed once it rests, as it was saved last. However
many documents change, the whole is compacted once in a second at most. It prints:

    report saved: created, debounced, debounced, debounced
    report indexed: version 4
    compacted: created, created, throttled, throttled
    runs: 2
    nightly: created, duplicate
"""

import bide

queue = bide.Queue("search")


@queue.task(unique=bide.debounce("500ms", max_wait="5s", key=lambda name, version: name))
def index(name: str, version: int) -> str:
    return f"{name} indexed: version {version}"


@queue.task(unique=bide.throttle("1/s"))
def compact() -> None: ...


@queue.task(unique=bide.Unique(until="finished"))
def rebuild(kind: str) -> None: ...


def main() -> None:
    saves = [index.enqueue("report", version) for version in range(1, 5)]
    print("report saved:", ", ".join(str(job.enqueue_result) for job in saves))
    print(saves[0].wait())
    calls = [compact.enqueue() for _ in range(4)]
    print("compacted:", ", ".join(str(job.enqueue_result) for job in calls))
    for job in calls:
        job.wait()
    print("runs:", len({job.id for job in calls}))
    nightly = [rebuild.later("1h").enqueue("all") for _ in range(2)]
    print("nightly:", ", ".join(str(job.enqueue_result) for job in nightly))
