"""bide behind `django.tasks`, and enqueues that wait for a transaction's commit.

    TASKS = {"default": {"BACKEND": "bide.contrib.django.Backend"}}

For Django 6, and for Django 4.2 and later with the package
`django-tasks`.
"""

from bide.contrib import needed

with needed("Django", "django"):
    import django as _django  # noqa: F401

from bide.contrib.django.backend import Backend
from bide.contrib.django.running import DatabaseConnections, OnCommit, on_commit

__all__ = ["Backend", "DatabaseConnections", "OnCommit", "on_commit"]
