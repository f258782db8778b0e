"""`manage.py bide_relay`: `bide outbox relay`, for the outbox of the project."""

from __future__ import annotations

from bide.contrib.django.management.commands.bide import Command as Bide


class Command(Bide):
    """Runs a relay."""

    help = "Sends the rows that the outbox has left, until Ctrl-C or SIGTERM: `bide outbox relay`."
    before = ("outbox", "relay")
