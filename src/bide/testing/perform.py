"""One job from its claim to its outcome, as a worker does it (`bide.worker.running`), step by step.

Arguments are decoded and become what the annotations say, resources are handed in, middlewares and
callbacks run, the result is encoded. Two things are not as in a worker: whatever module a task is
in is served, and a plain function is not bounded by its time-out.
"""

from __future__ import annotations

import asyncio
from contextvars import copy_context
from typing import Any, Final, NamedTuple

from bide.current import CurrentJob, enter
from bide.errors import BideError, TaskNotFound
from bide.middleware import used
from bide.retry import NO_RETRY
from bide.task import Served, Target
from bide.testing.stage import AsyncStage, Awaited, Plain, Stage, Steps, catch, catch_async
from bide.worker import aftermath, judging
from bide.worker.calling import Call, prepare
from bide.worker.reading import read
from bide.worker.run import Ended, Run

WORKER: Final = "bide-testing"
"""The worker's name, as jobs see it."""


class Everything(Served):
    """Serves whatever module a task is in: which modules a worker serves is no matter of tests."""

    def find(self, name: str) -> Target:
        """What a name leads to; raises as `Served.find` does."""
        try:
            return super().find(name)
        except TaskNotFound:
            self.serve(name.partition(":")[0])
            return super().find(name)

    def _serves(self, module: str) -> bool:
        """All code is that of the test."""
        return True


class Performed(NamedTuple):
    """How a run ended."""

    ended: Ended
    error: BaseException | None


def perform(
    run: Run, served: Served, stage: Stage | AsyncStage, *, retries: bool = True
) -> Steps[Performed]:
    """Run a job.

    Args:
        run: the job.
        served: the tasks.
        stage: which will take the steps, and whose resources the job is given.
        retries: whether the job's retry policy is applied; else any error is the last.
    """
    context = copy_context()
    value: Any = None
    error: BaseException | None = None
    in_run = False
    try:
        target, body = context.run(read, run, served, allow_pickle=True)
        if target.signature.injected:
            yield Awaited(context, stage.open_for(target.signature.injected.values()))
        call = context.run(prepare, body, target, stage.lifespan, used())
    except BideError as refused:
        context.run(enter, run.job or run.as_job())
        error = refused
        run.missing = False  # a test has all code there is: nobody is to be waited for
    else:
        assert run.job is not None
        in_run = True
        if target.is_async:
            value, error = yield Awaited(context, catch_async(_in_time(run, call, run.job)))
        else:
            value, error = yield Plain(context, lambda wait: catch(call.run, run.job, wait))
    if not retries:
        run.policy = run.policy._replace(retry=NO_RETRY, has_retry=False)
    if error is None:
        judged = context.run(judging.completed, run, value)
    else:
        judged = context.run(judging.raised, run, error, served, in_run=in_run)
    if aftermath.is_due(judged):
        yield Plain(context, lambda wait: aftermath.call(run, judged, served, wait))
    failed = judged.value if isinstance(judged.value, BaseException) else error
    return Performed(judged.ended, error if judged.ended[0] == "complete" else failed)


async def _in_time(run: Run, call: Call, job: CurrentJob) -> Any:
    limit = asyncio.timeout(run.policy.timeout)
    try:
        async with limit:
            return await call.run_async(job)
    except BaseException:
        run.timed_out = limit.expired()
        raise
