"""Sets Django up in a process of a worker, when a worker that serves this module imports it.

Each run of a task closes old database connections, as a request of Django does.
"""

from __future__ import annotations

import django
from django.apps import apps

from bide.contrib.django.apps import task_modules
from bide.contrib.django.running import DatabaseConnections
from bide.logs import Log
from bide.tasks.middleware import add_middleware

if not apps.ready:
    django.setup()
add_middleware(DatabaseConnections())
if len(task_modules()) == 1:
    Log("bide.worker").warning(
        "no application of INSTALLED_APPS has a module named tasks: this worker runs only the "
        "tasks of modules that it was given"
    )
