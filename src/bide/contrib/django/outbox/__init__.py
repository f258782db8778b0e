"""A transactional outbox in the database of a Django project.

    INSTALLED_APPS = [..., "bide.contrib.django", "bide.contrib.django.outbox"]

    with transaction.atomic():
        order = Order.objects.create()
        outbox.enqueue(cancel_unpaid.options(delay="30m"), order.id)

It is an application of its own: projects without it get no tables.
"""

from bide.contrib.django.outbox.writing import Once, Outbox, ProjectOutbox
from bide.contrib.outbox.rows import Fenced

__all__ = ["Fenced", "Once", "Outbox", "outbox"]

outbox: Outbox = ProjectOutbox()
"""The outbox of the database `default`. Its relay also serves the databases that TASKS names."""
