"""Lines of several builds, out of order and from several producers; each build handled as a whole.

The line that ends a build does not come last. So it enqueues what handles the build, due a little
later and under an id that the build has only once; by then the stragglers are there. The lines lie
in a hash of the program's own. It prints:

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

import redis

import bide

queue = bide.Queue("logs")
STRAGGLERS = "500ms"

SENT = [
    [(7, 4, "END"), (8, 3, "END"), (7, 1, "checkout")],  # each producer's own order
    [(8, 2, "compile"), (7, 3, "test"), (8, 3, "END")],  # one says END again
    [(7, 2, "compile"), (8, 1, "checkout")],
]


@queue.task
def collect(build: int, number: int, text: str) -> None:
    with redis.Redis.from_url(queue.url) as store:
        store.hset(f"build {build}", str(number), text)  # a line that comes twice counts once
    if text == "END":
        handle.options(job_id=f"build-{build}", delay=STRAGGLERS).enqueue(build)


@queue.task
def handle(build: int) -> list[str]:
    with redis.Redis.from_url(queue.url) as store:
        lines: dict[bytes, bytes] = store.hgetall(f"build {build}")
        store.delete(f"build {build}")
    return [f"{int(n)} {lines[n].decode()}" for n in sorted(lines, key=int)]


def main() -> None:
    with queue.events(kinds="completed", job_id=["build-7", "build-8"]) as events:
        with ThreadPoolExecutor() as producers:
            producers.map(lambda lines: [collect.enqueue(*line) for line in lines], SENT)
        done = sorted(str(next(events).job_id) for _ in range(2))
    for id in done:
        lines = queue.fetch(id).wait()
        print(f"{id.replace('-', ' ')}: {len(lines)} lines")
        print(*(f"  {line}" for line in lines), sep="\n")
