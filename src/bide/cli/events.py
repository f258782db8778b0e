"""`bide events`: what becomes of a queue's jobs, as it happens."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

import click

from bide.cli.options import json_option, option, queue_option, server_options
from bide.cli.screen import Style, aside, echo, echo_json
from bide.errors import BideError
from bide.model.durations import describe
from bide.model.events import Event
from bide.model.ids import short_id
from bide.model.job import EVENTS
from bide.queue import Queue
from bide.queue.event_reader import EventReader
from bide.views.params import moment_exactly, report

_STYLE: Final[dict[str, Style]] = {
    "active": "cyan",
    "completed": "green",
    "failed": "red",
    "reclaimed": "red",
    "gap": "red",
    "retried": "yellow",
    "cancelled": "dim",
    "drained": "dim",
}


@click.command()
@queue_option("Queue whose events are printed.", "queue_name", default="default", show_default=True)
@option(
    "-k --kind kinds",
    "KIND",
    "Kind of events to print; repeat for more.",
    type=click.Choice(list(EVENTS)),
    multiple=True,
)
@option(
    "--job job_ids", "ID", "Id of a job whose events are printed; repeat for more.", multiple=True
)
@option("--after", "EVENT", "Print the events after the event with this id.")
@option("--name", "NAME", "Listener's name: its events are kept for ten minutes more.")
@option("--timeout", "DURATION", "End after this time without an event.")
@server_options
@json_option
def events(
    queue_name: str,
    kinds: tuple[str, ...],
    job_ids: tuple[str, ...],
    after: str | None,
    name: str | None,
    timeout: str | None,
    url: str | None,
    prefix: str | None,
    as_json: bool,
) -> None:
    """Print the events of a queue, until Ctrl-C."""
    queue = Queue(queue_name, url=url, prefix=prefix)
    tasks = _Tasks(queue)
    following = queue.events(
        name=name, after=after, kinds=kinds or None, job_id=job_ids or None, timeout=timeout
    )
    with following:
        try:
            for event in following:
                task = tasks.of(event, following._reader)
                if as_json:
                    echo_json(_document(event, task))
                else:
                    echo(_line(event, task), _STYLE.get(event.kind, ""))
        except KeyboardInterrupt:
            pass
    if name is not None:
        aside(
            f"To continue from here: bide events -q {queue.name} --name {name} "
            f"--after {following.after}"
        )


_MOST_KNOWN: Final = 20_000


class _Tasks:
    """The tasks of jobs, which events do not name: read once per job, of many jobs together."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._known: dict[str, str] = {}
        """Task by job id; empty for a job that was deleted before."""

    def of(self, event: Event, reader: EventReader) -> str:
        """The task of the event's job; empty if there is none, or it is not known any more."""
        if event.job_id is None:
            return ""
        if event.job_id not in self._known:
            if len(self._known) > _MOST_KNOWN:
                self._known.clear()
            ids = {event.job_id, *reader.job_ids_ahead} - self._known.keys()
            self._known |= dict.fromkeys(ids, "")
            with suppress(BideError):  # the events are shown all the same
                found = self._queue.fetch_many([*ids])
                self._known |= {job.id: job.task for job in found if job is not None}
        return self._known[event.job_id]


def _line(event: Event, task: str) -> str:
    at = moment_exactly(event.at) if event.at else "-"
    told = [short_id(event.job_id or ""), task, _remark(event)]
    return "  ".join([at, event.kind.ljust(11), *filter(None, told)])


def _remark(event: Event) -> str:
    if event.kind == "gap":
        lost = f"{event.count} events" if event.count else "events"
        return f"{lost} before {event.id} were lost"
    if event.kind == "purged":
        return f"{event.count} jobs"
    told = []
    if event.worker:
        told.append(f"attempt {event.attempt} on {short_id(event.worker)}")
    if event.progress:
        told.append(f"{event.progress.fraction:.0%} {event.progress.text}".rstrip())
    if event.error:
        told.append(f"{event.error.type}: {event.error.message}")
    if event.due and event.at and event.kind != "active":
        ahead = (event.due - event.at).total_seconds()
        told.append(f"due in {describe(ahead)}" if ahead > 0 else "due now")
    return ", ".join(told)


def _document(event: Event, task: str) -> dict[str, Any]:
    return {
        **report(event, "id", "kind", "verb", "at"),
        "job": event.job_id,
        "task": task or None,
        **report(event, "worker", "attempt", "due"),
        "error": event.error and report(event.error, "type", "message"),
        "progress": event.progress and report(event.progress, "fraction", "text"),
        "count": event.count,
    }
