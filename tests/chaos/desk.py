"""The order desk, as its workers and its relay import it: the database is in the environment."""

from __future__ import annotations

import atexit
import os
import time

from sqlalchemy.orm import Session

from bide.contrib.sqlalchemy import Fenced, Outbox
from tests.chaos.orders import DATABASE
from tests.support.ledger_jobs import note
from tests.support.order_tables import Base, Shipped, engine_for

engine = engine_for(os.environ[DATABASE])
outbox = Outbox(Base.metadata, engine)
atexit.register(engine.dispose)  # psycopg warns of connections that nobody has closed


def ship(order: int, seconds: float) -> int:
    """Write the order's parcel into the database, once."""
    note("begun")
    time.sleep(seconds)
    try:
        with Session(engine) as session, session.begin(), outbox.once(session) as once:
            if once.first:
                session.add(Shipped(order_id=order))
            else:
                note("repeated")
    except Fenced:
        note("fenced")
        raise
    return note("done")


def unpaid(order: int) -> None:
    """Cancel the order; all orders are paid before."""
    raise AssertionError(f"order {order} was paid")
