"""A transactional outbox in your own database, through SQLAlchemy 2; sync and async sessions.

outbox = Outbox(metadata)

with Session(engine) as session, session.begin():
    session.add(order)
    outbox.enqueue(session, cancel_unpaid.options(delay="30m"), order.id)
"""

from bide.contrib import needed

with needed("SQLAlchemy 2", "sqlalchemy"):
    import sqlalchemy as _sqlalchemy  # noqa: F401

from bide.contrib.outbox.once import Fenced
from bide.contrib.sqlalchemy.once import Once
from bide.contrib.sqlalchemy.outbox import Outbox

__all__ = ["Fenced", "Once", "Outbox"]
