"""From a claimed job to what is to be called: which task, by which policy, with which arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from bide.current import enter
from bide.errors import BideError, TaskNotFound
from bide.payload.codec import Body, Envelope, check_id, decode_envelope, open_envelope
from bide.task import Served, Target
from bide.worker import judging
from bide.worker.calling import policy_for
from bide.worker.run import Run


def read(run: Run, served: Served, *, allow_pickle: bool) -> tuple[Target, Body]:
    """The task and the body of a job; along the way, the run learns what it is.

    The context in which this is called becomes that of the job.

    Raises:
        BideError: the body is not signed as it has to be, or cannot be read, the task is not
            served, or the job must not be repeated and a worker died under it.
    """
    target, envelope, is_signed = identify(run, served)
    if run.claimed.reclaims and run.policy.on_crash == "fail":
        raise judging.crashed()
    run.body = open_envelope(envelope, allow_pickle=allow_pickle and is_signed)
    return target, run.body


def arguments_of(run: Run) -> tuple[Sequence[Any], Mapping[str, Any]] | tuple[None, None]:
    """Return the arguments of a job as they were enqueued, None where they cannot be read.

    A job whose process died has not been read here. Its pickled arguments are not read now: that
    runs code of theirs, which may have been what the process died of.
    """
    if run.body is None:
        try:
            run.station.seal.check("job", run.claimed.id, run.claimed.body)
            run.body = open_envelope(decode_envelope(run.claimed.body))
        except BideError:
            return None, None
    return run.body.args, run.body.kwargs


def identify_if_possible(run: Run, served: Served) -> None:
    """Have a run learn of itself what can be learnt, and make this context that of the job."""
    with suppress(BideError):  # otherwise it has no policy
        identify(run, served)
    enter(run.job or run.as_job())


def identify(run: Run, served: Served) -> tuple[Target, Envelope, bool]:
    """Have a run learn what it is, by which policy, without touching its arguments.

    Returns:
        The task, the body, and whether a key of ours has signed it.

    Raises:
        BideError: the body is not signed as it has to be, or cannot be read, or the task is not
            served.
    """
    check_id(run.claimed.id)
    is_signed = run.station.seal.check("job", run.claimed.id, run.claimed.body)
    envelope = decode_envelope(run.claimed.body)
    head = envelope.body
    run.learn(head)
    run.codec = head.codec
    run.job = run.as_job(head.meta, head.schedule, head.parents)
    enter(run.job)
    try:
        target = served.find_to_run(head.task)
    except BaseException as error:
        run.policy = policy_for(head, run.policy)  # by which the error is judged
        run.missing = isinstance(error, TaskNotFound)
        raise
    run.policy = policy_for(head, target.policy)
    return target, envelope, is_signed
