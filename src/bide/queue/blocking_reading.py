"""What a queue reads of others than its own jobs, for code that blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from bide.current import current_job
from bide.keys import keys_of
from bide.ops import holders, inspect, registry
from bide.ops.registry import WorkerSeen
from bide.queue.blocking_job import Job
from bide.queue.parents import by_queue, in_order

if TYPE_CHECKING:
    from bide.queue.blocking import Queue


class Reading:
    """What a queue asks of other queues, and of workers."""

    def parents(self, id: str | None = None) -> list[Job[Any]]:
        """The jobs that a job waits for, or has waited for, in the order given.

        Args:
            id: of a job of this queue; None for the job that the calling code runs in.

        Raises:
            JobNotFound: there is no job of this id, or one of those that it waits for is no more.
            UsageError: without an id, outside of a job.
        """
        queue = cast("Queue", self)
        if id is None:
            home, parents = current_job().queue, current_job().parents
        else:
            home, parents = queue.name, queue.fetch(id).parents
        read = {}
        for name, ids in by_queue(home, parents).items():
            pages = queue._client.run_many(inspect.fetch_many(keys_of(name, queue.prefix), ids))
            read[name] = [snapshot for page in pages for snapshot in page]
        return [
            Job(queue._beside(name), snapshot.id, snapshot=snapshot)
            for name, snapshot in in_order(home, parents, read)
        ]

    def workers(self) -> list[WorkerSeen]:
        """Return the workers that serve this queue and live or hold a job, with their running jobs.

        A worker that dies is listed for up to 15 seconds, and for as long as it holds a job.
        """
        queue = cast("Queue", self)
        seen = queue._client.run(registry.workers(queue._here.everywhere))
        seen = [worker for worker in seen if queue.name in worker.about.queues]
        held = queue._client.attempt_many(holders.ask(seen, queue.prefix))
        return holders.tell(seen, held)

    def _beside(self, name: str) -> Queue:
        """Another queue of the same server, by its name."""
        queue = cast("Queue", self)
        if name == queue.name:
            return queue
        return type(queue)(
            name,
            url=queue._url,
            prefix=queue._prefix,
            serializer=queue.serializer,
            patience=queue._patience,
        )
