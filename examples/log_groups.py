"""Lines of several builds, out of order and from several producers; each build handled as a whole.

Each line is batched under its build. When none has come for half a second, all of a build are
handled at once; if the worker dies meanwhile, the next run has exactly the same lines. It prints:

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

import bide

Line = tuple[int, int, str]
queue = bide.Queue("logs")

SENT: list[list[Line]] = [
    [(7, 4, "END"), (8, 3, "END"), (7, 1, "checkout")],  # each producer's own order
    [(8, 2, "compile"), (7, 3, "test"), (8, 3, "END")],  # one says END again
    [(7, 2, "compile"), (8, 1, "checkout")],
]


@queue.task
def handle(lines: list[Line]) -> list[str]:
    return [f"{number} {text}" for _, number, text in sorted(set(lines))]


def send(lines: list[Line]) -> dict[int, bide.Job[list[str]]]:
    return {line[0]: queue.batch(line[0], line, into=handle, quiet="500ms") for line in lines}


def main() -> None:
    with ThreadPoolExecutor() as producers:
        builds = {build: job for jobs in producers.map(send, SENT) for build, job in jobs.items()}
    for build, job in sorted(builds.items()):
        lines = job.wait()
        print(f"build {build}: {len(lines)} lines", *lines, sep="\n  ")
