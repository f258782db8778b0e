"""What type checkers must refuse: each line that ends in `# refused`, and no other. Never run."""

from __future__ import annotations

import bide
from bide import AsyncQueue, Queue, RetryLater, Worker

queue = Queue("mail")
async_queue = AsyncQueue("mail")


@queue.task
def add(a: int, b: int = 2) -> int:
    return a + b


@async_queue.task
async def fetch(url: str) -> bytes:
    return b""


add("x")  # refused
add.enqueue("x")  # refused
add.enqueue()  # refused
add.enqueue(1, c=3)  # refused
add.enqueue(1, delay=3)  # refused
add.delay(1)  # refused
add.apply_async((1,))  # refused
add.send(1)  # refused
add.later("30m").enqueue("x")  # refused
add.later(None).enqueue(1)  # refused
add.options(prioritty=9).enqueue(1)  # refused
add.options(priority="9").enqueue(1)  # refused
add.options(queue=async_queue)  # refused
add.prepare("x")  # refused
queue.task(tmieout=3)  # refused
queue.task(name=5)  # refused
add.options(name="x")  # refused
Worker(queue, strategy="random")  # refused
Worker(queue, strategy={"mail": "6"})  # refused
queue.enqueue_call(add, (1,), on_crash="ignore")  # refused
queue.enqueue(add, 1, priority="high")  # refused
RetryLater([3])  # refused
queue.configure(concurrency="ten")  # refused
queue.configure(speed="10/s")  # refused
Queue("hooks", rate=5)  # refused
Queue("hooks", defaults={"dealy": 5})  # refused
text: str = add.enqueue(1).wait(1)  # refused


async def awaited() -> None:
    await fetch.enqueue(3)  # refused
    await fetch.later("1m").enqueue(url=3)  # refused


class Wrong(bide.Middleware):
    def failed(self, failure: bide.Job[int]) -> None: ...  # refused


class Final(bide.Middleware):
    def failed(self, failure: bide.FailedAttempt) -> None:
        failure.is_final = True  # refused
        failure.retry_in + 1  # refused
