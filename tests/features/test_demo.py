"""`bide demo`, as a user runs it: in processes of its own, with their exit codes and leavings."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bide.cli.demo.books import LOST, TWICE, Begun, Problem, Record, balance, sample
from bide.cli.demo.play import LEASE
from tests.support.cpu_waits import SERVER, Starvation, Witness
from tests.support.eventually import PATIENCE, eventually

DEMO = [sys.executable, "-m", "bide", "demo"]
SMALL = ["--orders", "40", "--speed", "4"]
WHOLE = 600.0  # seconds that a whole demo may take before it counts as never
SLOWLY = ("--speed", "0.01")  # no worker is killed while a test looks
NO_REDELIVERY = Path(__file__).parent / "no_redelivery"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")]


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    path = tmp_path / "t"
    path.mkdir()
    return path


@pytest.fixture
def env(temporary: Path) -> dict[str, str]:
    return {**os.environ, "TMPDIR": str(temporary), "COLUMNS": "80"}


@pytest.fixture
def start(env: dict[str, str]) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a demo that is ended with the test, whatever happens."""
    demos: list[subprocess.Popen[str]] = []

    def start(*args: str) -> subprocess.Popen[str]:
        demo = subprocess.Popen(
            [*DEMO, *args],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        demos.append(demo)
        return demo

    yield start
    for demo in demos:
        demo.kill()
        demo.communicate()


def run(env: dict[str, str], *args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*DEMO, *args], env=env, capture_output=True, text=True, timeout=WHOLE)


def processes(temporary: Path) -> list[int]:
    """All processes that were started with this directory for their temporary files.

    A server shows its socket's path instead: it has overwritten its environment with a title.
    """
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            shown = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
            if os.fsencode(temporary) in shown:
                found.append(int(process.name))
    return found


def at_work(temporary: Path) -> dict[int, str]:
    """The workers and the server among them, as a witness names them."""
    found = {}
    for pid in processes(temporary):
        with contextlib.suppress(OSError):
            shown = Path(f"/proc/{pid}/cmdline").read_bytes()
            if b"-server" in shown:
                found[pid] = f"{SERVER} {pid}"
            elif b"bide.cli.demo.play" in shown:
                found[pid] = str(pid)
    return found


def is_explained(problem: Problem, runs: list[Begun], starved: list[Starvation]) -> bool:
    """Whether a job ran twice because its first worker had no processor, and so lost its lease."""
    return problem.kind == TWICE and any(
        problem.text.startswith(f"the {run.kind} for order {run.order} ran in process {run.pid},")
        and run.token <= one.until_us  # claimed before it was over
        and any(
            (run.order, run.kind) == (again.order, again.kind) and run.token < again.token
            for again in runs
            if again.started_us >= one.from_us
        )
        for run in runs
        for one in starved
        if one.worker == str(run.pid)
    )


def test_a_second_run_is_explained_by_evidence_alone() -> None:
    def run(pid: int, at: int) -> Begun:
        return Begun("A", "notification", "id", 1, at, pid, due_us=0, started_us=at)

    runs = [run(7, 10), run(8, 30)]
    twice = Problem(TWICE, "the notification for order A ran in process 7, and again in 8.")
    starved = Starvation("7", 12, 28)
    assert is_explained(twice, runs, [starved])
    assert not is_explained(twice, runs, [])
    assert not is_explained(twice, runs, [starved._replace(worker="8")])
    assert not is_explained(twice, runs, [Starvation("7", 1, 9)])
    assert not is_explained(twice, runs, [Starvation("7", 31, 40)])
    assert not is_explained(Problem(LOST, twice.text), runs, [starved])


def assert_clean(temporary: Path) -> None:
    assert processes(temporary) == []
    assert list(temporary.iterdir()) == []


def wait_for(demo: subprocess.Popen[str], text: str) -> None:
    """Read what a demo prints until a line has a text."""
    assert demo.stdout is not None
    for line in demo.stdout:
        if text in line:
            return
    raise AssertionError(f"it ended without {text!r}")


def test_the_books_balance_although_a_worker_is_killed(
    env: dict[str, str], temporary: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept"
    with Witness(lambda: at_work(temporary)) as witness:
        demo = run(env, *SMALL, "--keep", kept)
    books = balance(kept / "orders.csv", kept / "journal.jsonl")
    events = Record(kept / "journal.jsonl").read()
    runs = [event for event in events if isinstance(event, Begun)]
    starved = witness.starved(LEASE)
    assert [p for p in books.problems if not is_explained(p, runs, starved)] == []
    assert (demo.returncode, demo.stderr) == (0 if books.balanced else 1, "")
    assert "embedded: not for production" in demo.stdout
    assert re.search(r"killed +worker \d+ \(SIGKILL\) while it ran [1-9]\d* jobs?", demo.stdout)
    assert ("The books balance" in demo.stdout) == books.balanced
    assert "\x1b" not in demo.stdout
    assert f"python -m bide.cli.demo.books {kept}/orders.csv {kept}/journal.jsonl" in demo.stdout
    assert_clean(temporary)

    assert (books.orders, books.enqueued) == (40, 80)
    assert books.run + books.cancelled == 80
    assert books.redelivered >= 1
    assert len(books.killed) == 1
    assert min(books.lateness_us) >= 0

    again = run(env, *SMALL, "--keep", kept)
    assert again.returncode == 2
    assert "holds a journal already" in again.stderr


def test_without_redelivery_jobs_are_lost_and_it_says_so(
    env: dict[str, str], temporary: Path, tmp_path: Path
) -> None:
    cut_log = tmp_path / "cut"
    env |= {"PYTHONPATH": str(NO_REDELIVERY), "CUT_LOG": str(cut_log)}
    kept = tmp_path / "kept"
    demo = run(env, *SMALL, "--keep", kept)
    workers = re.search(r"3 processes: (.*)", demo.stdout)
    assert workers is not None, demo.stderr
    assert set(cut_log.read_text().split()) == set(workers[1].split(", "))
    assert demo.returncode == 1
    assert "given up" in demo.stdout
    assert "The books do not balance" in demo.stdout
    assert_clean(temporary)

    books = balance(kept / "orders.csv", kept / "journal.jsonl")
    assert {problem.kind for problem in books.problems} == {LOST}
    assert books.redelivered == 0


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_stops_everything(
    start: Callable[..., subprocess.Popen[str]], temporary: Path, how: signal.Signals
) -> None:
    demo = start(*SLOWLY)
    wait_for(demo, "300 from the sample")
    assert len(processes(temporary)) >= 6  # itself, the server and its watcher, three workers
    demo.send_signal(how)
    _, stderr = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 128 + how
    assert stderr == "Stopped; the server and all workers have ended.\n"
    assert_clean(temporary)


def test_a_demo_that_is_killed_takes_everything_along(
    start: Callable[..., subprocess.Popen[str]], temporary: Path
) -> None:
    demo = start(*SLOWLY)
    wait_for(demo, "300 from the sample")
    assert len(processes(temporary)) >= 6
    demo.kill()
    demo.wait(PATIENCE)
    eventually(lambda: not processes(temporary))
    eventually(lambda: not list(temporary.iterdir()))


def test_bad_rows_are_told_of_and_the_others_played(
    env: dict[str, str], temporary: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "mine.csv"
    mine.write_text(
        "order,placed,deadline,paid_after\nA,0,0.5,0.1\nB,[soon],1,\nC,0,0.3,\nD,0,0.4,0.7\n"
    )
    demo = run(env, mine)
    assert "mine.csv line 3 has placed '[soon]', which is not a number" in demo.stdout
    assert "3 from mine.csv" in demo.stdout
    assert demo.returncode == 0
    assert_clean(temporary)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read (No such file or directory); give the path of a CSV file"),
        ("", "is empty; its first line must be order,placed,deadline,paid_after"),
        ("id,when\n1,2\n", "has the header 'id,when'"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_sentence(
    env: dict[str, str], temporary: Path, tmp_path: Path, content: str | None, says: str
) -> None:
    mine = tmp_path / "mine.csv"
    if content is not None:
        mine.write_text(content)
    demo = run(env, mine)
    assert (demo.returncode, demo.stdout) == (1, "")
    assert demo.stderr.startswith(f"Error: {mine} ")
    assert says in demo.stderr
    assert demo.stderr.count("\n") == 1
    assert_clean(temporary)


def test_a_server_and_a_prefix_of_the_environment_change_nothing(
    env: dict[str, str], temporary: Path
) -> None:
    demo = run(env | {"BIDE_URL": "redis://127.0.0.1:1/0", "BIDE_PREFIX": "mine"}, *SMALL)
    assert re.search(r"\blost +0\n", demo.stdout), demo.stdout + demo.stderr
    assert_clean(temporary)


def test_no_server_on_this_machine_is_one_sentence(env: dict[str, str], temporary: Path) -> None:
    demo = run(env | {"BIDE_SERVER": str(sample())})
    assert (demo.returncode, demo.stdout) == (1, "")
    assert demo.stderr.startswith("Error: $BIDE_SERVER is ")
    assert demo.stderr.count("\n") == 1
    assert_clean(temporary)


@pytest.mark.parametrize("args", [["--speed", "0"], ["--orders", "0"], ["--speed", "x"]])
def test_options_that_cannot_be_meant(env: dict[str, str], args: list[str]) -> None:
    demo = run(env, *args)
    assert demo.returncode == 2
    assert "Invalid value" in demo.stderr
