"""A transactional outbox in your own database, through SQLAlchemy 2; sync and async sessions.

outbox = Outbox(metadata)

with Session(engine) as session, session.begin():
    session.add(order)
    outbox.enqueue(session, cancel_unpaid.options(delay="30m"), order.id)
"""

from bide.contrib import needed

with needed("SQLAlchemy 2", "sqlalchemy"):
    import sqlalchemy as _sqlalchemy  # noqa: F401

from bide.contrib.outbox.rows import Fenced
from bide.contrib.sqlalchemy.outbox import Outbox
from bide.contrib.sqlalchemy.tables import Once

__all__ = ["Fenced", "Once", "Outbox"]
