"""Tasks of `django.tasks`, and one of a queue's own."""

from __future__ import annotations

import importlib
import importlib.util
from datetime import date
from typing import Any

from django.db import connection

import bide

package = "django.tasks" if importlib.util.find_spec("django.tasks") else "django_tasks"
tasks: Any = importlib.import_module(package)
seen: list[Any] = []


@tasks.task
def add(a: int, b: int = 1) -> int:
    return a + b


@tasks.task(queue_name="mail", priority=50)
def on(day: date) -> str:
    seen.append(day)
    return day.isoformat()


@tasks.task
async def count() -> int:
    from asgiref.sync import sync_to_async

    return await sync_to_async(rows)()


def rows() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM orders")
        (number,) = cursor.fetchone()
    seen.append(connection.connection)
    return int(number)


@tasks.task
def count_in_thread() -> int:
    return rows()


@tasks.task(takes_context=True)
def knows(context: Any, day: date) -> dict[str, Any]:
    return {"id": context.task_result.id, "attempt": context.attempt, "year": day.year}


@tasks.task(backend="now")
def fails(text: str) -> None:
    seen.append(text)
    raise ValueError(text)


plain = bide.Queue("mail")


@plain.task
def remind(order: int) -> None:
    seen.append(order)
