"""The backend of `django.tasks`: converts its tasks to jobs, and jobs to its results."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections, transaction
from django.utils import timezone
from django.utils.module_loading import import_string

from bide.contrib.django.outbox import Outbox
from bide.contrib.django.running import at_commit, known, new_result, part_of, serve, stored_result
from bide.contrib.outbox.rows import enqueue_rows
from bide.errors import BideError, JobNotFound, UsageError
from bide.model.ids import new_id
from bide.model.options import Options
from bide.queue import Queue
from bide.queue.binding import Permit, TaskQueue, note_task_queue
from bide.tasks.task import check_options, signature_of


def _package() -> str:
    """Return Django's own package of tasks if it has one, otherwise `django-tasks`."""
    for package in ("django.tasks", "django_tasks"):
        if importlib.util.find_spec(package) is not None:
            return package
    raise ImportError(
        "bide.contrib.django needs Django 6, or the package django-tasks with an older Django: "
        "run `pip install 'bide[django]'`."
    )


PACKAGE: Final = _package()
"""The package with Django's tasks."""
_Base: Any = importlib.import_module(f"{PACKAGE}.backends.base").BaseTaskBackend
_DoesNotExist: Any = importlib.import_module(f"{PACKAGE}.exceptions").TaskResultDoesNotExist

_TASK_OPTIONS: Final = ("retry", "timeout", "retention", "expires", "on_crash", "durability")
_OPTIONS: Final = ("url", "prefix", "on_commit", "outbox", *_TASK_OPTIONS)


class Backend(_Base):  # type: ignore[misc]
    """A backend of Django's tasks.

    `TASKS = {"default": {"BACKEND": "bide.contrib.django.Backend", "OPTIONS": {...}}}`.

    The options `url` and `prefix` are those of `bide.Queue`. With `on_commit`, an enqueue waits for
    the commit of its transaction: True, or the alias of a database. With `outbox` (or `OUTBOX`),
    an enqueue is a row of the outbox in its transaction: True, or the alias of a database. The
    options `retry`, `timeout`, `retention`, `expires`, `on_crash` and `durability` are those of
    `@queue.task`, for all tasks.
    """

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        """Read the settings.

        Raises:
            ImproperlyConfigured: an option is not one of those above, or is invalid.
        """
        super().__init__(alias, params)
        self._given: dict[str, Any] = {  # also in capitals, as Django writes it
            "outbox" if name == "OUTBOX" else name: value for name, value in self.options.items()
        }
        for name in self._given:
            if name not in _OPTIONS:
                raise ImproperlyConfigured(
                    f"OPTIONS of TASKS[{alias!r}] has {name!r}, which is none of "
                    f"{', '.join(_OPTIONS)}."
                )
        self._named: list[str] = list(params.get("QUEUES") or self.queues)
        """The names in QUEUES, in their order."""
        if isinstance(params.get("QUEUES"), str):
            raise ImproperlyConfigured(
                f"QUEUES of TASKS[{alias!r}] must be a list of names, not {params['QUEUES']!r}."
            )
        using = self._given.get("on_commit")
        if isinstance(using, str) and using not in connections:
            raise ImproperlyConfigured(
                f"OPTIONS of TASKS[{alias!r}] has the on_commit {using!r}, which is none of "
                f"{', '.join(connections)} in DATABASES."
            )
        self._on_commit: bool | str = self._given.get("on_commit", True)
        given = {name: self._given[name] for name in _TASK_OPTIONS if name in self._given}
        self._outbox = self._read_outbox()
        self._options = Options(**given)  # type: ignore[typeddict-item]
        try:
            check_options(self._options)
        except UsageError as error:
            raise ImproperlyConfigured(f"OPTIONS of TASKS[{alias!r}]: {error}") from error

    def validate_task(self, task: Any) -> None:
        """Refuse a task that no worker could run; let workers of this process run other tasks."""
        super().validate_task(task)
        try:
            name = serve(task)
        except UsageError as error:
            kinds = part_of(task, "exceptions")
            # Django and django-tasks have different names for it.
            refused = getattr(kinds, "InvalidTask", None) or kinds.InvalidTaskError
            raise refused(str(error)) from error
        if known[name] is task:  # not the copy that `using` creates for each job
            for queue in self._named or [task.queue_name]:
                note_task_queue(
                    name, TaskQueue(queue, self._given.get("url"), self._given.get("prefix"))
                )

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Enqueue a job; with `on_commit` or `outbox`, it is sent after the commit.

        Raises:
            InvalidTask: no worker could run it (InvalidTaskError of django-tasks).
            TypeError: an argument is not JSON.
            BideError: an argument does not fit the task, or the server refuses.
        """
        self.validate_task(task)
        name = serve(task)
        # The registered wrapper has fixed parameters only if it hides the context.
        signature = signature_of(name, name) if task.takes_context else signature_of(task.func, "")
        if signature is not None:
            signature.check(args, kwargs, name)
        result = new_result(task, new_id(), args, kwargs)
        at = task.run_after
        if at is not None and timezone.is_naive(at):
            at = timezone.make_aware(at)
        queue = self._queue(task.queue_name)
        options = self._options.copy()
        options["job_id"] = result.id.rpartition(":")[2]
        options["at"], options["priority"] = at, _priority(task.priority)
        prepared = queue.prepare(name, result.args, result.kwargs, **options)

        def emit() -> None:
            signals = part_of(task, "signals")
            signals.task_enqueued.send(type(self), task_result=result)

        def send() -> None:
            queue.enqueue_many([prepared])
            emit()

        if self._outbox is not None:
            self._outbox._write(queue, enqueue_rows(queue, [prepared]), alone=True)
            transaction.on_commit(emit, using=self._outbox.using)
        elif self._on_commit is False:
            send()
        else:
            at_commit(send, None if self._on_commit is True else self._on_commit)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result of a job.

        Raises:
            TaskResultDoesNotExist: there is no such job, or this process has not imported the
                module of its task.
            BideError: the server cannot be reached, or refuses.
        """
        queue, _, job_id = str(result_id).rpartition(":")
        if not queue or (self.queues and queue not in self.queues):
            raise _DoesNotExist(result_id)
        try:
            job = self._queue(queue).fetch(job_id)
        except (JobNotFound, UsageError):
            raise _DoesNotExist(result_id) from None
        task = known.get(job.task)
        if task is None:
            raise _DoesNotExist(f"{result_id} is of {job.task}; import its module first.")
        return stored_result(task.using(queue_name=queue, backend=self.alias), job)

    def check(self, **kwargs: Any) -> Any:
        """Report invalid settings at `manage.py check`."""
        from django.core import checks

        yield from super().check(**kwargs)
        try:
            for name in self.queues or ["default"]:
                self._queue(name).keys  # noqa: B018
                if self._outbox is not None:
                    self._outbox.check_ready(self._queue(name))
        except BideError as error:
            yield checks.Error(f"TASKS[{self.alias!r}]: {error}", id="bide.E001")

    def _read_outbox(self) -> Outbox | None:
        using = self._given.get("outbox", False)
        if using is False:
            return None
        if not isinstance(using, bool | str):
            raise ImproperlyConfigured(
                f"OPTIONS of TASKS[{self.alias!r}] has the outbox {using!r}; set it to True or to "
                "the alias of a database."
            )
        if "on_commit" in self._given:
            raise ImproperlyConfigured(
                f"OPTIONS of TASKS[{self.alias!r}] has both outbox and on_commit; remove "
                "on_commit, as rows of the outbox are sent after the commit."
            )
        return _outbox(DEFAULT_DB_ALIAS if using is True else using)

    def _queue(self, name: str) -> Queue:
        return _queue(name, self._given.get("url"), self._given.get("prefix"))


def job_name(task: Any) -> str:
    """Return the name of a task in its jobs.

    Raises:
        UsageError: it has another backend, which creates no jobs.
    """
    backend = task.get_backend()
    if not isinstance(backend, Backend):
        kind = type(backend)
        raise UsageError(
            f"{task.module_path} is enqueued by TASKS[{task.backend!r}], whose backend is "
            f"{kind.__module__}.{kind.__qualname__}; in the tests' settings, set it to "
            "bide.contrib.django.Backend."
        )
    return serve(task)


def common_server() -> dict[str, str]:
    """Return the URL and the prefix in the OPTIONS of TASKS, if all of bide's backends agree."""
    found = _servers()
    return found[0] if found and all(each == found[0] for each in found) else {}


def common_url() -> str | None:
    """Return the URL in the OPTIONS of TASKS, if all of bide's backends agree."""
    urls = {each.get("url") for each in _servers()}
    return urls.pop() if len(urls) == 1 else None


def outbox_databases() -> set[str]:
    """Return the aliases of databases in the OPTIONS of TASKS whose outbox a backend uses."""
    given = [options.get("outbox", options.get("OUTBOX")) for options in _all_options()]
    return {using for using in given if isinstance(using, str)}


def _servers() -> list[dict[str, str]]:
    keys = ("url", "prefix")
    return [{key: each[key] for key in keys if each.get(key)} for each in _all_options()]


def _all_options() -> Iterator[dict[str, Any]]:
    for backend in (getattr(settings, "TASKS", None) or {}).values():
        kind = import_string(backend["BACKEND"])
        if isinstance(kind, type) and issubclass(kind, Backend):
            yield backend.get("OPTIONS", {})


@lru_cache(maxsize=256)
def _queue(name: str, url: str | None, prefix: str | None) -> Queue:
    """Return a queue, which threads share; Django creates a backend for each thread."""
    queue = Queue(name, url=url, prefix=prefix)
    queue._permit = Permit(None)  # the URL of the settings, even if a test makes the first call
    return queue


@lru_cache(maxsize=64)
def _outbox(using: str) -> Outbox:
    """Return the outbox, which threads share because it has connections to the server."""
    return Outbox(using)


def _priority(priority: int) -> int:
    """Convert a priority from -100 to 100 to bide's 0 to 9; Django's default 0 becomes 5."""
    return 5 + -(-priority * 4 // 100) if priority >= 0 else 5 - -(priority * 5 // 100)
