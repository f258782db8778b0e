"""`bide jobs cancel`, `retry`, `promote`, `reschedule`, `delete`: by id, or all that fit a filter.

With a filter, the command first says how many jobs match, and asks; with ids it does not ask. It
looks up matching jobs once: a job that has another state by its turn is left alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

import click

from bide.cli.jobs.find import (
    MOST,
    PAGE,
    Filter,
    filter_options,
    locate,
    look_up,
    pages,
    read_filter,
    read_ids,
    scan,
)
from bide.cli.jobs.show import print_jobs
from bide.cli.options import json_option, read_at, server_options
from bide.cli.screen import aside, bar, confirmed, count, echo, echo_json
from bide.errors import UsageError
from bide.logs import printable
from bide.model.ids import short_id
from bide.model.job import State
from bide.protocol.commands.enqueue import when
from bide.queue import Queue
from bide.queue.job_view import not_found
from bide.views.job import FoundJob
from bide.views.site import Site

F = TypeVar("F", bound=Callable[..., Any])
Act = Callable[[Queue, Sequence[str]], list[str]]
"""From a queue and ids to a word for each: `ok`, `asked`, the state it is in instead, `gone`."""

_SHOWN: Final = 10
"""Jobs named one by one, where they are many."""

_DUE: Final = (State.WAITING, State.DELAYED)
_UNBEGUN: Final = (*_DUE, State.BLOCKED)
_ENDED: Final = (State.FAILED, State.CANCELLED, State.COMPLETED)


class JobChange(NamedTuple):
    """A change of jobs, and the states of jobs that allow it."""

    name: str
    past: str
    usual: tuple[State, ...]
    """The states that a filter selects if it names none."""
    possible: tuple[State, ...]
    fine: tuple[str, ...] = ("ok",)
    """Outcomes that count as a success."""


CANCEL: Final = JobChange(
    "cancel", "cancelled", _DUE, (State.ACTIVE, *_UNBEGUN), ("ok", "asked", "cancelled")
)
RETRY: Final = JobChange("retry", "retried", (State.FAILED,), _ENDED)
PROMOTE: Final = JobChange("promote", "promoted", (State.DELAYED,), _UNBEGUN)
RESCHEDULE: Final = JobChange("reschedule", "rescheduled", _DUE, _UNBEGUN)
DELETE: Final = JobChange("delete", "deleted", _ENDED, (*_UNBEGUN, *_ENDED))


@dataclass(frozen=True)
class Meant:
    """Which jobs the command line means."""

    ids: tuple[str, ...]
    queues: tuple[str, ...]
    all_queues: bool
    states: tuple[str, ...]
    task: str | None
    error: str | None
    older_than: str | None
    due_before: str | None
    limit: int | None
    dry_run: bool
    yes: bool
    url: str | None
    prefix: str | None
    as_json: bool

    @property
    def filtered(self) -> bool:
        """Whether jobs are described rather than named."""
        said = (self.states, self.task, self.error, self.older_than, self.due_before, self.limit)
        return self.all_queues or any(value not in (None, ()) for value in said)


def choosing(function: F) -> F:
    """Arguments and options that say which jobs are meant."""
    for option in reversed(
        [
            click.argument("ids", nargs=-1, metavar="[ID]..."),
            filter_options,
            click.option("--all-queues", is_flag=True, help="In all queues there are."),
            click.option(
                "-n", "--limit", metavar="N", type=click.IntRange(1, MOST), help="So many at most."
            ),
            click.option("--dry-run", is_flag=True, help="Only show which jobs are meant."),
            click.option("-y", "--yes", is_flag=True, help="Do not ask."),
            server_options,
            json_option,
        ]
    ):
        function = option(function)
    return function


def due_options(function: F) -> F:
    """`--in` and `--at`."""
    delay = click.option("--in", "delay", metavar="DELAY", help="From now: 30, 250ms, 5m, 1h30m.")
    at = click.option("--at", metavar="MOMENT", help="2030-01-31T09:00:00+01:00.")
    return delay(at(function))


@click.command()
@choosing
@click.option("--leave-running", is_flag=True, help="Do not ask those that run to end.")
def cancel(leave_running: bool, **meant: Any) -> None:
    """Take jobs back; those that run are asked to end.

    Jobs are named by ID (- reads ids from standard input), or chosen by options; then delayed and
    waiting ones are meant unless --state says otherwise.
    """
    change(CANCEL, Meant(**meant), lambda queue, ids: queue.cancel_many(ids, not leave_running))


@click.command()
@choosing
@due_options
def retry(delay: str | None, at: str | None, **meant: Any) -> None:
    """Run jobs that have ended once more.

    Jobs are named by ID (- reads ids from standard input), or chosen by options; then failed ones
    are meant unless --state says otherwise.
    """
    moment = _read_due(delay, at)
    change(RETRY, Meant(**meant), lambda queue, ids: queue.retry_many(ids, delay, moment))


@click.command()
@choosing
def promote(**meant: Any) -> None:
    """Make jobs due now.

    Jobs are named by ID (- reads ids from standard input), or chosen by options; then delayed ones
    are meant.
    """
    change(PROMOTE, Meant(**meant), lambda queue, ids: queue.promote_many(ids))


@click.command()
@choosing
@due_options
def reschedule(delay: str | None, at: str | None, **meant: Any) -> None:
    """Give jobs another due time.

    Jobs are named by ID (- reads ids from standard input), or chosen by options; then delayed and
    waiting ones are meant unless --state says otherwise.
    """
    if delay is None and at is None:
        raise UsageError("Say when they are due: --in 5m, or --at 2030-01-31T09:00:00+01:00.")
    moment = _read_due(delay, at)
    change(RESCHEDULE, Meant(**meant), lambda queue, ids: queue.reschedule_many(ids, delay, moment))


@click.command()
@choosing
def delete(**meant: Any) -> None:
    """Remove every trace of jobs.

    Jobs are named by ID (- reads ids from standard input), or chosen by options; then those that
    have ended are meant unless --state says otherwise. One that runs cannot be deleted.
    """
    change(DELETE, Meant(**meant), lambda queue, ids: queue.delete_many(ids))


def _read_due(delay: str | None, at: str | None) -> datetime | None:
    """Return the moment of `--at`; check delay and moment before any job is read.

    Raises:
        UsageError: the delay or the moment is invalid.
    """
    moment = read_at(at) if at else None
    when(delay, moment)
    return moment


VERBS: Final = (cancel, retry, promote, reschedule, delete)


# -- what all of them do


def change(verb: JobChange, meant: Meant, act: Act) -> None:
    """Find the chosen jobs, ask if needed, change them, and report each outcome.

    Raises:
        UsageError: the arguments do not say which jobs, or there is no terminal to ask at.
        JobNotFound: there is no job with an id; the other jobs were changed.
    """
    site = Site(meant.url, meant.prefix)
    if meant.ids:
        if meant.filtered:
            raise UsageError("Name jobs by id or choose them by options, not both.")
        _change_named(site, verb, meant, act)
    else:
        _change_chosen(site, verb, meant, act)


def _change_named(site: Site, verb: JobChange, meant: Meant, act: Act) -> None:
    ids = read_ids(meant.ids)
    found, missing = locate(site, meant.queues, ids)
    where: dict[str, list[str]] = {}
    for seen in found:
        where.setdefault(seen.queue, []).append(seen.id)
    if meant.dry_run:
        _rehearse(site, verb, where, meant)
    else:
        outcomes = _act(site, where, act, verb)
        if outcomes or meant.as_json:
            _report(verb, outcomes, missing, meant.as_json)
        refused = [(id, word) for _, id, word in outcomes if word not in verb.fine]
        missing += [id for id, word in refused if word == "gone"]
        refused = [(id, word) for id, word in refused if word != "gone"]
        for id, word in refused[:_SHOWN]:
            allowed = " or ".join(state.value for state in verb.possible)
            aside(f"{short_id(id)} is {word}; only what is {allowed} can be {verb.past}.")
        if len(refused) > _SHOWN:
            aside(f"... and {len(refused) - _SHOWN:,} more.")
        if refused and not missing:
            click.get_current_context().exit(1)
    for id in missing[1 : _SHOWN + 1]:
        aside(str(not_found(id)))
    if missing:
        raise not_found(missing[0])


def _change_chosen(site: Site, verb: JobChange, meant: Meant, act: Act) -> None:
    wanted = _wanted(verb, meant)
    names = site.known(meant.queues)
    where, tally = _choose(site, names, wanted, meant.limit)
    if meant.dry_run:
        _rehearse(site, verb, where, meant)
        return
    if not tally:
        if meant.as_json:
            _report(verb, [], [], True)
        else:
            aside("No job fits; nothing was changed.")
        return
    parts = [count(n, f"{state} job") for state, n in tally.items()]
    question = f"{verb.name.capitalize()} {' and '.join(parts)} of {', '.join(where)}?"
    if not confirmed(question, meant.yes):
        return
    _report(verb, _act(site, where, act, verb), [], meant.as_json)


def _wanted(verb: JobChange, meant: Meant) -> Filter:
    said = (meant.states, meant.task, meant.error, meant.older_than, meant.due_before)
    if not any(said):
        raise UsageError(
            f"Say which jobs to {verb.name}: by id, or with --state, --task, --error, "
            "--older-than or --due-before."
        )
    if not meant.queues and not meant.all_queues:
        raise UsageError(f"Say in which queue to {verb.name} jobs: --queue NAME, or --all-queues.")
    if meant.queues and meant.all_queues:
        raise UsageError("Give --queue or --all-queues, not both.")
    for state in meant.states:
        if state not in verb.possible:
            allowed = ", ".join(state.value for state in verb.possible)
            raise UsageError(f"What is {state} cannot be {verb.past}; only what is {allowed} can.")
    return read_filter(
        meant.states, meant.task, meant.error, meant.older_than, meant.due_before, verb.usual
    )


def _choose(
    site: Site, queues: Sequence[str], wanted: Filter, limit: int | None
) -> tuple[dict[str, list[str]], Counter[str]]:
    """Ids by queue, and how many there are of each state."""
    where: dict[str, list[str]] = {}
    tally: Counter[str] = Counter()
    with bar("looking") as tick:
        for state, queue, id in _each(site, queues, wanted, tick):
            where.setdefault(queue, []).append(id)
            tally[state] += 1
            if tally.total() == limit:
                break
    return where, tally


def _each(
    site: Site, queues: Sequence[str], wanted: Filter, tick: Callable[[int], None]
) -> Iterator[tuple[State, str, str]]:
    """State, queue and id of each that fits; jobs are read only where ids do not say."""
    if wanted.reads_jobs:
        for seen in scan(site, queues, wanted, tick):
            yield seen.state, seen.queue, seen.id
    else:
        for state, queue, ids in pages(site, queues, wanted.states, tick):
            for id in ids:
                yield state, queue, id


class Outcome(NamedTuple):
    """What came of one job."""

    queue: str
    id: str
    word: str


def _act(site: Site, where: dict[str, list[str]], act: Act, verb: JobChange) -> list[Outcome]:
    outcomes = []
    with bar(verb.name, sum(map(len, where.values()))) as tick:
        for queue, ids in where.items():
            for i in range(0, len(ids), PAGE):
                some = ids[i : i + PAGE]
                words = act(site.queue(queue), some)
                outcomes += [Outcome(queue, *each) for each in zip(some, words, strict=True)]
                tick(len(some))
    return outcomes


def _report(
    verb: JobChange, outcomes: Sequence[Outcome], missing: Sequence[str], as_json: bool
) -> None:
    if as_json:
        jobs = [outcome._asdict() for outcome in outcomes]
        jobs += [{"queue": None, "id": id, "word": "gone"} for id in missing]
        changed = sum(outcome.word in verb.fine for outcome in outcomes)
        echo_json({"changed": changed, "jobs": jobs})
        return
    words = Counter(outcome.word for outcome in outcomes)
    asked = words.pop("asked", 0)
    changed = sum(words.pop(word, 0) for word in verb.fine)
    said = [f"{count(changed, 'job')} {verb.past}"] if changed or not asked else []
    if asked:
        said.append(f"{count(asked, 'running job')} asked to end")
    left = [f"{n:,} {word}" for word, n in words.items()]
    if left:
        said.append(f"left alone: {', '.join(left)}")
    echo(printable("; ".join(said)) + ".")


def _rehearse(site: Site, verb: JobChange, where: dict[str, list[str]], meant: Meant) -> None:
    total = sum(map(len, where.values()))
    if meant.as_json:
        jobs = [{"queue": queue, "id": id} for queue, ids in where.items() for id in ids]
        echo_json({"would_change": total, "jobs": jobs})
        return
    shown: list[FoundJob] = []
    for queue, ids in where.items():
        room = _SHOWN - len(shown)
        shown += [seen for seen in look_up(site, queue, ids[:room]) if seen is not None]
    if shown:
        print_jobs(shown, with_queue=True)
    if total > len(shown):
        echo(f"... and {total - len(shown):,} more")
    echo(f"Would {verb.name} {count(total, 'job')}; nothing was changed.")
