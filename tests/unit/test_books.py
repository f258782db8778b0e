"""The demo's checker, on journals made by hand: each kind of imbalance is found."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bide.cli.demo.books import (
    CANCEL,
    EARLY,
    LOST,
    MISCOUNTED,
    NOTIFY,
    PAID_YET_CANCELLED,
    TWICE,
    Begun,
    Books,
    DemoError,
    Event,
    Finished,
    Journal,
    Killed,
    Kind,
    Opened,
    Paid,
    Placed,
    balance,
)

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
SPEED = 2.0
NOTIFY_DUE = START + 200_000  # 0.4 s of the scenario, at twice its speed
CANCEL_DUE = START + 1 * SECOND  # 2 s of the scenario
LEASE = 2 * SECOND


class Story:
    """Two orders placed at once, one paid in time; what became of them is told by the test."""

    def __init__(self, directory: Path) -> None:
        self.orders = directory / "orders.csv"
        self.orders.write_text(
            "order,placed,deadline,paid_after\npaid,0.0,2.0,1.5\nunpaid,0.0,2.0,\n"
        )
        self.path = directory / "journal.jsonl"
        self.journal = Journal(self.path)
        self.tell(Opened(START, SPEED, 0.4))
        for order in ("paid", "unpaid"):
            self.tell(Placed(order, START - 50, START + 50, NOTIFY_DUE, CANCEL_DUE))

    def tell(self, *events: Event) -> None:
        for event in events:
            self.journal.write(event)

    def begun(
        self, order: str, kind: Kind, *, late: int = 800, pid: int = 11, token: int = 1
    ) -> None:
        due = NOTIFY_DUE if kind == NOTIFY else CANCEL_DUE
        self.tell(Begun(order, kind, f"{kind}-{order}", 1, token, pid, due, due + late))

    def done(self, order: str, kind: Kind, *, pid: int = 11, token: int = 1) -> None:
        self.tell(Finished(order, kind, f"{kind}-{order}", 1, token, pid, CANCEL_DUE + SECOND))

    def ran(
        self, order: str, kind: Kind, *, late: int = 800, pid: int = 11, token: int = 1
    ) -> None:
        self.begun(order, kind, late=late, pid=pid, token=token)
        self.done(order, kind, pid=pid, token=token)

    def paid(self, order: str = "paid", *, at: int = START + 750_000, in_time: bool = True) -> None:
        self.tell(Paid(order, at, at + 300, in_time))

    def went_well(self, *but: tuple[str, Kind]) -> None:
        """Everything happened as it should, but for these jobs."""
        self.paid()
        for order, kind in (("paid", NOTIFY), ("unpaid", NOTIFY), ("unpaid", CANCEL)):
            if (order, kind) not in but:
                self.ran(order, kind)

    def balance(self) -> Books:
        return balance(self.orders, self.path)


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def kinds(books: Books) -> list[str]:
    return [problem.kind for problem in books.problems]


class TestBalanced:
    def test_books_that_balance(self, story: Story) -> None:
        story.went_well()
        books = story.balance()
        assert books.balanced
        assert (books.orders, books.enqueued, books.run, books.cancelled) == (2, 4, 3, 1)
        assert books.lateness_us == [800, 800, 800]
        assert (books.redelivered, books.killed) == (0, [])

    def test_a_second_run_after_a_kill_has_a_cause(self, story: Story) -> None:
        story.went_well(("paid", NOTIFY))
        story.begun("paid", NOTIFY, pid=11, token=1)
        story.tell(Killed(11, NOTIFY_DUE + 1000, NOTIFY_DUE + 2000))
        story.ran("paid", NOTIFY, pid=12, token=2, late=LEASE)
        books = story.balance()
        assert books.balanced
        assert (books.run, books.redelivered, books.redelivered_us) == (3, 1, [LEASE])
        assert books.killed == [11]

    def test_a_kill_after_the_end_but_before_the_settle_is_a_cause(self, story: Story) -> None:
        story.went_well(("paid", NOTIFY))
        story.ran("paid", NOTIFY, pid=11, token=1)
        story.tell(Killed(11, NOTIFY_DUE + 1000, NOTIFY_DUE + 2000))
        story.ran("paid", NOTIFY, pid=12, token=2, late=LEASE)
        assert story.balance().balanced

    def test_a_cancellation_redelivered_to_its_end(self, story: Story) -> None:
        story.went_well(("unpaid", CANCEL))
        story.begun("unpaid", CANCEL, pid=11)
        story.tell(Killed(11, CANCEL_DUE + 1000, CANCEL_DUE + 2000))
        story.ran("unpaid", CANCEL, pid=12, token=2, late=LEASE)
        assert story.balance().balanced

    def test_a_payment_that_came_too_late(self, story: Story) -> None:
        story.orders.write_text(
            "order,placed,deadline,paid_after\npaid,0.0,2.0,2.0\nunpaid,0.0,2.0,\n"
        )
        story.paid(at=CANCEL_DUE, in_time=False)
        for kind in (NOTIFY, CANCEL):
            story.ran("paid", kind)
            story.ran("unpaid", kind)
        books = story.balance()
        assert books.balanced
        assert (books.run, books.cancelled) == (4, 0)

    def test_a_torn_last_line_counts_for_nothing(self, story: Story) -> None:
        story.went_well()
        with story.path.open("ab") as file:
            file.write(b'{"event":"begun","order":"unpaid","ki')
        books = story.balance()
        assert books.balanced
        assert "torn" in books.notes[0]


class TestEarly:
    @pytest.mark.parametrize("kind", [NOTIFY, CANCEL])
    def test_a_job_that_began_a_microsecond_too_soon(self, story: Story, kind: Kind) -> None:
        story.went_well(("unpaid", kind))
        story.ran("unpaid", kind, late=-1)
        books = story.balance()
        assert kinds(books) == [EARLY]
        assert (
            books.problems[0].text == f"the {kind} for order unpaid began 1 us before it was due."
        )

    def test_a_redelivery_can_be_early_too(self, story: Story) -> None:
        story.went_well(("paid", NOTIFY))
        story.begun("paid", NOTIFY, late=-500)
        story.tell(Killed(11, NOTIFY_DUE - 400, NOTIFY_DUE - 300))
        story.ran("paid", NOTIFY, pid=12, token=2, late=-200)
        assert kinds(story.balance()) == [EARLY, EARLY]


class TestLost:
    @pytest.mark.parametrize("kind", [NOTIFY, CANCEL])
    def test_a_job_that_never_ran(self, story: Story, kind: Kind) -> None:
        story.went_well(("unpaid", kind))
        books = story.balance()
        assert kinds(books) == [LOST]
        assert books.problems[0].text == f"the {kind} for order unpaid never ran."

    def test_a_job_whose_worker_was_killed_and_that_was_not_redelivered(self, story: Story) -> None:
        story.went_well(("paid", NOTIFY))
        story.begun("paid", NOTIFY)
        story.tell(Killed(11, NOTIFY_DUE + 1000, NOTIFY_DUE + 2000))
        books = story.balance()
        assert kinds(books) == [LOST]
        assert "which was killed" in books.problems[0].text

    def test_a_job_that_did_not_end(self, story: Story) -> None:
        story.went_well(("paid", NOTIFY))
        story.begun("paid", NOTIFY)
        books = story.balance()
        assert kinds(books) == [LOST]
        assert "did not finish" in books.problems[0].text

    def test_a_torn_line_is_no_end(self, story: Story) -> None:
        story.went_well(("paid", NOTIFY))
        story.ran("paid", NOTIFY)
        story.path.write_bytes(story.path.read_bytes()[:-10])
        assert kinds(story.balance()) == [LOST]

    def test_an_empty_journal(self, story: Story) -> None:
        story.path.write_bytes(b"")
        books = story.balance()
        assert not books.balanced
        assert books.run == 0


class TestTwice:
    def test_two_runs_in_processes_that_lived_on(self, story: Story) -> None:
        story.went_well()
        story.ran("paid", NOTIFY, pid=12, token=2, late=5000)
        books = story.balance()
        assert kinds(books) == [TWICE]
        assert "process 11, and again in 12" in books.problems[0].text

    def test_the_kill_of_another_process_is_no_cause(self, story: Story) -> None:
        story.went_well()
        story.tell(Killed(13, NOTIFY_DUE + 1000, NOTIFY_DUE + 2000))
        story.ran("paid", NOTIFY, pid=12, token=2, late=LEASE)
        assert kinds(story.balance()) == [TWICE]

    def test_a_run_before_the_kill_has_no_cause_in_it(self, story: Story) -> None:
        story.went_well(("paid", NOTIFY))
        story.begun("paid", NOTIFY, pid=11)
        story.ran("paid", NOTIFY, pid=12, token=2, late=5000)
        story.tell(Killed(11, NOTIFY_DUE + LEASE, NOTIFY_DUE + LEASE + 1000))
        assert kinds(story.balance()) == [TWICE]

    def test_one_kill_explains_one_more_run_only(self, story: Story) -> None:
        story.went_well(("paid", NOTIFY))
        story.begun("paid", NOTIFY, pid=11)
        story.tell(Killed(11, NOTIFY_DUE + 1000, NOTIFY_DUE + 2000))
        story.ran("paid", NOTIFY, pid=12, token=2, late=LEASE)
        story.ran("paid", NOTIFY, pid=13, token=3, late=LEASE + 1000)
        books = story.balance()
        assert kinds(books) == [TWICE]
        assert books.redelivered == 1


class TestPayment:
    def test_an_order_paid_in_time_and_yet_cancelled(self, story: Story) -> None:
        story.went_well()
        story.ran("paid", CANCEL)
        assert kinds(story.balance()) == [PAID_YET_CANCELLED]

    def test_a_cancellation_that_could_not_be_taken_back_before_its_time(
        self, story: Story
    ) -> None:
        story.went_well()
        story.path.write_bytes(story.path.read_bytes().replace(b":true", b":false"))
        story.ran("paid", CANCEL)
        books = story.balance()
        assert kinds(books) == [MISCOUNTED]
        assert "could not be stopped" in books.problems[0].text

    @pytest.mark.parametrize("times", [0, 2])
    def test_a_payment_that_the_desk_missed_or_repeated(self, story: Story, times: int) -> None:
        for _ in range(times):
            story.paid()
        for order, kind in (("paid", NOTIFY), ("unpaid", NOTIFY), ("unpaid", CANCEL)):
            story.ran(order, kind)
        if times == 0:
            story.ran("paid", CANCEL)
        books = story.balance()
        assert kinds(books) == [MISCOUNTED]
        assert f"paid {times} times" in books.problems[0].text


class TestJournal:
    @pytest.mark.parametrize(
        "line",
        [b"\n", b"no JSON\n", b'{"event":"begun"}\n', b'{"event":"?"}\n', b"\xff\n", b"[]\n"],
    )
    def test_a_line_in_its_middle_that_is_no_event(self, story: Story, line: bytes) -> None:
        with story.path.open("ab") as file:
            file.write(line)
        story.went_well()
        books = story.balance()
        assert kinds(books) == [MISCOUNTED]
        assert books.problems[0].text == "line 4 of the journal is not an event."

    def test_an_order_that_nobody_gave(self, story: Story) -> None:
        story.went_well()
        story.ran("phantom", NOTIFY)
        assert "phantom" in story.balance().problems[0].text

    def test_an_order_that_was_placed_twice_or_never(self, story: Story) -> None:
        story.went_well()
        story.tell(Placed("paid", START, START, NOTIFY_DUE, CANCEL_DUE))
        assert "placed 2 times" in story.balance().problems[0].text

    @pytest.mark.parametrize("off", [-51, 51])
    def test_a_job_that_is_not_due_when_it_was_asked_for(self, story: Story, off: int) -> None:
        story.path.write_bytes(
            story.path.read_bytes().replace(
                f'"notify_due_us":{NOTIFY_DUE}'.encode(),
                f'"notify_due_us":{NOTIFY_DUE + off}'.encode(),
                1,
            )
        )
        story.went_well(("paid", NOTIFY))
        due = NOTIFY_DUE + off
        story.tell(Begun("paid", NOTIFY, "x", 1, 1, 11, due, due))
        story.done("paid", NOTIFY)
        books = story.balance()
        assert kinds(books) == [MISCOUNTED]
        assert "is due -1 us" in books.problems[0].text or "is due +1 us" in books.problems[0].text

    def test_a_run_with_another_due_time_than_was_agreed(self, story: Story) -> None:
        story.went_well(("paid", NOTIFY))
        story.tell(
            Begun("paid", NOTIFY, "x", 1, 1, 11, NOTIFY_DUE + 5, NOTIFY_DUE + 9),
        )
        story.done("paid", NOTIFY)
        assert kinds(story.balance()) == [MISCOUNTED]

    def test_a_journal_that_is_not_there(self, story: Story) -> None:
        with pytest.raises(DemoError, match="cannot be read"):
            balance(story.orders, story.path.with_name("none"))

    def test_a_journal_that_cannot_be_written(self, tmp_path: Path) -> None:
        with pytest.raises(DemoError, match="cannot be written"):
            Journal(tmp_path / "none" / "journal.jsonl")


class TestAlone:
    """`python -m bide.cli.demo.books`."""

    def run(self, *args: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "bide.cli.demo.books", *args], capture_output=True, text=True
        )

    def test_books_that_balance(self, story: Story) -> None:
        story.went_well()
        done = self.run(story.orders, story.path)
        assert (done.returncode, done.stderr) == (0, "")
        assert "The books balance" in done.stdout

    def test_books_that_do_not(self, story: Story) -> None:
        story.went_well(("unpaid", NOTIFY))
        done = self.run(story.orders, story.path)
        assert (done.returncode, done.stderr) == (1, "")
        assert "lost: the notification for order unpaid never ran." in done.stdout
        assert "The books do not balance" in done.stdout

    def test_misuse(self, story: Story) -> None:
        assert self.run(story.orders).returncode == 2
        done = self.run(story.path.with_name("none"), story.path)
        assert done.returncode == 1
        assert done.stderr.startswith("Error: ")
        assert done.stderr.count("\n") == 1
