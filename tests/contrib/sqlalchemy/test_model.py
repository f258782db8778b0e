"""Any order of commits, rollbacks, crashes, relays and runs, against a plain model."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from sqlalchemy.orm import Session

from bide.contrib.outbox.sending import Sender, Sent, Written
from bide.contrib.sqlalchemy import Fenced, tables
from bide.embedded import Server
from tests.contrib.sqlalchemy.conftest import Shop
from tests.support.order_tables import Order, engine_for
from tests.support.outboxes import run_of

JOBS = ("a", "b")
VERBS = ("enqueue", "cancel", "promote", "reschedule")


class Killed(BaseException):
    """The end of a process, for which nothing is prepared."""


class Dying(Sender):
    """A sender whose process dies before or after the sending."""

    before = False

    def send(self, rows: Sequence[Written]) -> Sent:
        if not self.before:
            super().send(rows)
        raise Killed


def work(order: int) -> None: ...


class Machine(RuleBasedStateMachine):
    """One database, one server; the sessions of one process follow one another."""

    server: Server

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.shop = Shop(engine_for(f"sqlite:///{self._directory.name}/shop.db"), self.server.url)
        for job in self.shop.queue.fetch_many(JOBS):
            if job is not None:
                job.cancel()
                job.delete()
        self.task = self.shop.queue.task(name="work")(work)
        self.sender = Sender(self.server.url)
        self.session: Session | None = None
        self.is_sent = True
        self.written: list[tuple[str, str]] = []
        self.expected: dict[str, str] = {}
        """The state of each job, once all committed rows are sent."""
        self.token = 0
        self.tokens: dict[str, int] = {}
        """For each job that has happened: the token of the run that committed."""

    def teardown(self) -> None:
        if self.session is not None:
            self.session.close()
        self.shop.queue.close()
        self.shop.outbox.close()
        self.sender.close()
        self.shop.engine.dispose()
        self._directory.cleanup()

    # -- writing

    @rule(changes=st.lists(st.tuples(st.sampled_from(JOBS), st.sampled_from(VERBS)), min_size=1))
    def write(self, changes: list[tuple[str, str]]) -> None:
        if self.session is None:
            self.session = Session(self.shop.engine)
        for job, verb in changes:
            self._write(self.session, job, verb)

    def _write(self, session: Session, job: str, verb: str) -> None:
        outbox, queue = self.shop.outbox, self.shop.queue
        if verb == "enqueue":
            outbox.enqueue(session, self.task.options(job_id=job, delay="1h"), 1)
        elif verb == "reschedule":
            outbox.reschedule(session, queue, job, delay="2h")
        else:
            getattr(outbox, verb)(session, queue, job)
        self.written.append((job, verb))

    @precondition(lambda self: self.session)
    @rule(fast=st.booleans())
    def commit(self, fast: bool) -> None:
        """With the fast path, or by a process that dies right after the commit."""
        assert self.session is not None
        self.shop.outbox.fast = fast
        if not fast:
            self.session.info.clear()
        self.session.commit()
        self.session, self.is_sent = None, False
        for job, verb in self.written:
            state = self.expected.get(job)
            if verb == "enqueue":
                self.expected.setdefault(job, "delayed")
            elif state in ("delayed", "waiting"):
                self.expected[job] = {
                    "cancel": "cancelled",
                    "promote": "waiting",
                    "reschedule": "delayed",
                }[verb]
        self.written = []
        self.shop.outbox.fast = True

    @precondition(lambda self: self.session)
    @rule()
    def roll_back(self) -> None:
        assert self.session is not None
        self.session.rollback()
        self.session, self.written = None, []

    # -- sending; SQLite has one writer, so no transaction may be open

    @precondition(lambda self: not self.session)
    @rule(most=st.integers(1, 3))
    def relay(self, most: int) -> None:
        tables.round_of(self.shop.outbox.tables, self.shop.engine, self.sender, most=most)

    @precondition(lambda self: not self.session)
    @rule(before=st.booleans(), most=st.integers(1, 3))
    def relay_dies(self, before: bool, most: int) -> None:
        dying = Dying(self.server.url)
        dying.before = before
        waiting = len(self.shop.rows())
        try:
            tables.round_of(self.shop.outbox.tables, self.shop.engine, dying, most=most)
        except Killed:
            assert len(self.shop.rows()) == waiting
        dying.close()

    @precondition(lambda self: not self.session and not self.is_sent)
    @rule()
    def drain(self) -> None:
        self.shop.outbox.relay(burst=True)
        self.is_sent = True
        assert self.shop.rows() == []
        found = self.shop.queue.fetch_many(JOBS)
        assert {job.id: str(job.state) for job in found if job} == self.expected

    # -- runs

    @precondition(lambda self: not self.session)
    @rule(
        job=st.sampled_from(JOBS),
        age=st.integers(0, 2),
        end=st.sampled_from(("commits", "fails", "is killed")),
    )
    def run(self, job: str, age: int, end: str) -> None:
        """A run of a job, whose token may be older than that of another run."""
        self.token += 1
        token = max(1, self.token - age)
        known = self.tokens.get(job)
        with run_of(job, token), Session(self.shop.engine) as session:
            try:
                with self.shop.outbox.once(session) as once:
                    assert once.first == (known is None)
                    if once.first:
                        session.add(Order(state=job))
                        once.result = token
            except Fenced:
                assert known is not None
                assert known > token
                return
            assert known is None or known <= token
            assert once.result == (known or token)
            if end == "commits":
                session.commit()
                self.tokens.setdefault(job, token)

    @invariant()
    def each_effect_is_there_once(self) -> None:
        if self.session is not None:
            return
        with self.shop.engine.connect() as connection:
            effects: list[Any] = [*connection.scalars(sa.select(Order.state))]
        assert sorted(effects) == sorted(self.tokens)


@pytest.mark.slow
def test_any_order_does_what_the_model_says(one_server: Server, one_url: str) -> None:
    machine = type("Served", (Machine,), {"server": one_server})
    case = machine.TestCase  # type: ignore[attr-defined]
    case.settings = settings(max_examples=80, stateful_step_count=40)
    case().runTest()
