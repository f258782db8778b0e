"""Lines of several builds, out of order and from several producers; each build handled as a whole.

The line that ends a build does not come last. So it enqueues what handles the build, a little later
and under an id of the build. The lines lie in a hash, which that job renames: if its worker dies,
they are there for its next run. They, and any that come too late, are gone after a day. It prints:

    build 7: 4 lines
      1 checkout
      2 compile
      3 test
      4 END
    build 8: 3 lines
      1 checkout
      2 compile
      3 END
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import redis

import bide

queue = bide.Queue("logs")
store: Any = redis.Redis.from_url(queue.url)
STRAGGLERS, DAY = "500ms", 86_400

SENT = [
    [(7, 4, "END"), (8, 3, "END"), (7, 1, "checkout")],  # each producer's own order
    [(8, 2, "compile"), (7, 3, "test"), (8, 3, "END")],  # one says END again
    [(7, 2, "compile"), (8, 1, "checkout")],
]


@queue.task
def collect(build: int, number: int, text: str) -> None:
    store.hset(f"build {build}", number, text)  # a line that comes twice counts once
    store.expire(f"build {build}", DAY)
    if text == "END":
        handle.options(job_id=f"build-{build}", delay=STRAGGLERS).enqueue(build)


@queue.task
def handle(build: int) -> list[str]:
    taken = f"taken {bide.current_job().id}"
    if not store.exists(taken):  # else an earlier run has, and its worker died
        store.rename(f"build {build}", taken)
    lines = store.hgetall(taken)
    return [f"{int(n)} {lines[n].decode()}" for n in sorted(lines, key=int)]


def main() -> None:
    with queue.events(kinds="completed", job_id=["build-7", "build-8"]) as events:
        with ThreadPoolExecutor() as producers:
            producers.map(lambda lines: [collect.enqueue(*line) for line in lines], SENT)
        done = [str(next(events).job_id) for _ in range(2)]
    for id in sorted(done):
        lines = queue.fetch(id).wait()
        print(f"{id.replace('-', ' ')}: {len(lines)} lines", *lines, sep="\n  ")
