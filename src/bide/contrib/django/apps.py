"""The application for INSTALLED_APPS: it has the command `manage.py bide`, and a check."""

from __future__ import annotations

from importlib import import_module

from django.apps import AppConfig, apps
from django.utils.module_loading import module_has_submodule

from bide.contrib.django.backend import PACKAGE


class BideConfig(AppConfig):  # type: ignore[misc]
    """bide, as an application of Django."""

    name = "bide.contrib.django"
    label = "bide"
    verbose_name = "bide"

    def ready(self) -> None:
        """Have `manage.py check` check TASKS, as django-tasks does only if it is an application."""
        import_module(f"{PACKAGE}.checks")


def task_modules() -> list[str]:
    """Return the modules that a worker serves: `tasks` of each installed application.

    The first one sets Django up, because each process of a worker imports them, and a child process
    has not run `manage.py`. None of them is imported here, so that a mistake in one of them is
    shown by the worker.
    """
    found = [
        f"{config.name}.tasks"
        for config in apps.get_app_configs()
        if module_has_submodule(config.module, "tasks")
    ]
    return ["bide.contrib.django.setup", *found]
