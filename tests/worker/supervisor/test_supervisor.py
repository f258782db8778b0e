"""Several workers as one unit: `bide worker -w N`."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from bide import Queue
from tests.support.console import bide
from tests.support.processes import children, state
from tests.support.workers import eventually
from tests.worker.supervisor.unit import started, stopped

pytestmark = pytest.mark.slow

SERVES = r"worker (\S+) serves"


@pytest.fixture
def queue(one_url: str) -> Iterator[Queue]:
    queue = Queue("work", url=one_url)
    yield queue
    queue.close()


def test_so_many_workers_run_jobs_and_stop_when_these_have_ended(
    tmp_path: Path, one_url: str, queue: Queue
) -> None:
    with started(tmp_path, one_url, "-q", "work", "-w", "2", "-c", "1") as unit:
        unit.logged(SERVES, 2)
        jobs = [queue.enqueue("shop:slow", 30, name) for name in ("a", "b")]
        unit.saw("a")
        unit.saw("b")
        unit.signal(signal.SIGTERM)
        unit.logged("is stopping: 1 job may finish", 2)
        unit.open_gate()
        assert unit.wait() == 0
    pids = {job.refresh().result for job in jobs}
    assert len(pids) == 2
    assert unit.process.pid not in pids


@pytest.mark.parametrize("executor", ["auto", "process", "fork"])
def test_every_executor_stops_and_leaves_nothing(
    tmp_path: Path, one_url: str, queue: Queue, executor: str
) -> None:
    with started(tmp_path, one_url, "-q", "work", "-w", "2", "-x", executor) as unit:
        unit.logged(SERVES, 2)
        jobs = [queue.enqueue("shop:pid") for _ in range(20)]
        for job in jobs:
            job.wait(90)
        unit.signal(signal.SIGINT)
        assert unit.wait() == 0


def test_a_worker_that_dies_is_started_again_and_its_jobs_come_back(
    tmp_path: Path, one_url: str, queue: Queue
) -> None:
    with started(tmp_path, one_url, "-q", "work", "-w", "2", "--lease", "1s") as unit:
        unit.logged(SERVES, 2)
        job = queue.enqueue("shop:slow", 30)
        unit.saw("slow")
        before = unit.worker_pids()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        unit.logged(r"died \(SIGKILL\)", 2)
        unit.logged(SERVES, 4)
        unit.open_gate()
        assert job.wait(90) not in before
        assert len(set(unit.worker_pids()) - set(before)) == 2
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0


@pytest.mark.parametrize("code", [0, 2, 75])
def test_the_exit_code_that_a_job_chooses_says_nothing(
    tmp_path: Path, one_url: str, queue: Queue, code: int
) -> None:
    with started(tmp_path, one_url, "-q", "work", "-w", "2", "--lease", "1s") as unit:
        unit.logged(SERVES, 2)
        queue.enqueue("shop:leave", code, on_crash="fail")
        unit.logged(rf"died \(exit code {code}\)")
        unit.logged(SERVES, 3)
        assert len(unit.worker_pids()) == 2
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0


def test_a_job_of_the_first_claim_that_blocks_the_event_loop_has_the_time_of_any_other(
    tmp_path: Path, one_url: str, queue: Queue
) -> None:
    """And not the time that resources have to open."""
    queue.enqueue("shop:block_loop", on_crash="fail")
    with started(tmp_path, one_url, "-q", "work", "-w", "1", limits={"STUCK": 2.0}) as unit:
        unit.logged(r"worker \d+ has not responded for \d+ s, and is killed")
        unit.logged(r"died \(SIGKILL\)")
        unit.open_gate()
        unit.logged(SERVES, 2)
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0


def test_a_worker_whose_resource_does_not_open_is_killed(tmp_path: Path, one_url: str) -> None:
    (tmp_path / "model.py").write_text(
        "import pathlib, time\nimport bide\n\n"
        "@bide.resource\ndef weights():\n"
        "    while not pathlib.Path('gate').exists():\n        time.sleep(0.01)\n    yield\n"
    )
    with started(tmp_path, one_url, "model", "-w", "1", limits={"OPENING": 1.0}) as unit:
        unit.logged(r"worker \d+ took more than 1 s to open its resources, and is killed")
        unit.logged(r"died \(SIGKILL\)")
        assert "serves" not in unit.log
        unit.open_gate()
        unit.logged(SERVES)
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0


@pytest.mark.parametrize("how", ["stop", "exit"])
def test_what_a_job_left_on_the_event_loop_does_not_end_it(
    tmp_path: Path, one_url: str, queue: Queue, how: str
) -> None:
    with started(tmp_path, one_url, "-q", "work", "-w", "1") as unit:
        queue.enqueue("shop:leave_behind", how).wait(90)
        queue.enqueue("shop:pid").wait(90)
        unit.logged("a task that a job started tried to end the worker")
        assert "died" not in unit.log
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0


def test_one_that_somebody_else_has_stopped_is_replaced(
    tmp_path: Path, one_url: str, queue: Queue
) -> None:
    with started(tmp_path, one_url, "-q", "work", "-w", "2") as unit:
        unit.logged(SERVES, 2)
        os.kill(unit.worker_pids()[0], signal.SIGTERM)
        unit.logged(SERVES, 3)
        bide(tmp_path, "workers", "stop", queue.workers()[0].name, url=one_url)
        unit.logged("has ended; still running: 1")
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0


def test_one_that_a_nameless_signal_ended_is_started_again(tmp_path: Path, one_url: str) -> None:
    with started(tmp_path, one_url, "-w", "1") as unit:
        unit.logged(SERVES)
        os.kill(unit.worker_pids()[0], signal.SIGRTMIN + 1)
        unit.logged(r"died \(signal 35\)")
        unit.logged(SERVES, 2)
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0


def test_a_plan_that_could_be_meant_once_is_tried_again(tmp_path: Path, one_url: str) -> None:
    """Amid a deployment a module is broken for a moment; the others go on."""
    with started(tmp_path, one_url, "-w", "2") as unit:
        unit.logged(SERVES, 2)
        first, second = unit.worker_pids()
        (tmp_path / "shop.py").rename(tmp_path / "gone.py")
        os.kill(first, signal.SIGKILL)
        unit.logged(r"died \(exit code 2\)")
        assert second in unit.worker_pids()
        (tmp_path / "gone.py").rename(tmp_path / "shop.py")
        unit.logged(SERVES, 3)
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0


@pytest.mark.parametrize("executor", ["auto", "process"])
def test_modules_named_like_pythons_own_are_left_alone(
    tmp_path: Path, one_url: str, queue: Queue, executor: str
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit('not what Python imports')\n")
    with started(tmp_path, one_url, "-q", "work", "-w", "1", "-x", executor) as unit:
        unit.logged(SERVES)
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0


@pytest.mark.parametrize("executor", ["auto", "process"])
def test_one_that_has_not_begun_stops_at_once(tmp_path: Path, one_url: str, executor: str) -> None:
    (tmp_path / "hangs.py").write_text(
        "import asyncio, pathlib, bide\n"
        "@bide.resource\n"
        "async def database():\n"
        "    pathlib.Path('opening').touch()\n"
        "    await asyncio.sleep(1000)\n"
        "    yield 1\n"
    )
    with started(tmp_path, one_url, "hangs", "-w", "1", "-x", executor) as unit:
        eventually((tmp_path / "opening").exists)
        unit.signal(signal.SIGTERM)
        unit.logged("stopped before it had started")
        assert unit.wait() == 0


def test_one_that_dies_again_and_again_is_started_at_growing_intervals(
    tmp_path: Path, one_url: str
) -> None:
    (tmp_path / "fatal.py").write_text("import os\nos._exit(7)\n")
    with started(tmp_path, one_url, "fatal", "-w", "2") as unit:
        unit.logged(r"died \(exit code 7\)", 4)
        assert "serves" not in unit.log  # the second waits for the first to begin
        assert len(unit.worker_pids()) <= 1
        unit.signal(signal.SIGTERM)
        unit.wait()


def test_a_plan_that_cannot_be_meant_ends_it_with_one_sentence(
    tmp_path: Path, one_url: str
) -> None:
    with started(tmp_path, one_url, "nowhere", "-w", "3") as unit:
        assert unit.wait() == 2
    errors = [line for line in unit.log.splitlines() if line.startswith("Error")]
    assert len(errors) == 1
    assert "'nowhere' cannot be imported" in errors[0]


def test_the_second_signal_gives_jobs_back(tmp_path: Path, one_url: str, queue: Queue) -> None:
    with started(tmp_path, one_url, "-q", "work", "-w", "2", "-x", "process") as unit:
        unit.logged(SERVES, 2)
        job = queue.enqueue("shop:slow", 60)
        unit.saw("slow")
        unit.signal(signal.SIGTERM)
        unit.logged("1 job may finish")
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0
    assert job.refresh().state == "waiting"
    assert job.attempt == 0


def test_the_third_kills_what_does_not_answer(tmp_path: Path, one_url: str) -> None:
    with started(tmp_path, one_url, "-q", "work", "-w", "2", "-x", "process") as unit:
        unit.logged(SERVES, 2)
        for pid in unit.worker_pids():
            os.kill(pid, signal.SIGSTOP)
            eventually(partial(stopped, pid))
        for answer in ("stopping 2 workers", "another signal kills", "is killed"):
            unit.signal(signal.SIGTERM)
            unit.logged(answer)
        assert unit.wait() == 1
        assert "does not stop, and is killed" in unit.log


@pytest.mark.parametrize("executor", ["auto", "process"])
def test_nothing_outlives_a_supervisor_that_is_killed(
    tmp_path: Path, one_url: str, queue: Queue, executor: str
) -> None:
    with started(tmp_path, one_url, "-q", "work", "-w", "2", "-x", executor) as unit:
        unit.logged(SERVES, 2)
        job = queue.enqueue("shop:slow", 60)
        unit.saw("slow")
        unit.signal(signal.SIGKILL)
        unit.logged("may finish", 2)
        unit.open_gate()
        unit.wait()
    assert job.refresh().state == "completed"


@pytest.mark.parametrize("executor", ["auto", "process"])
def test_what_a_job_left_behind_ends_with_it(
    tmp_path: Path, one_url: str, queue: Queue, executor: str
) -> None:
    with started(tmp_path, one_url, "-q", "work", "-w", "1", "-x", executor, "-c", "1") as unit:
        job = queue.enqueue("shop:leave_daemon", str(tmp_path / "daemon"))
        job.wait(90)
        daemon = int((tmp_path / "daemon").read_text())
        assert state(daemon) == "S"
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0
        assert state(daemon) in ("", "Z")


def test_a_thread_that_a_job_left_behind_keeps_no_worker_from_ending(
    tmp_path: Path, one_url: str, queue: Queue
) -> None:
    with started(tmp_path, one_url, "-q", "work", "-w", "1") as unit:
        queue.enqueue("shop:leave_thread").wait(90)
        unit.signal(signal.SIGTERM)
        unit.logged("exiting although threads still run: left-by-a-job")
        assert unit.wait() == 0


def test_orphans_that_end_are_reaped(tmp_path: Path, one_url: str, queue: Queue) -> None:
    with started(tmp_path, one_url, "-q", "work", "-w", "1") as unit:
        queue.enqueue("shop:leave_daemon", str(tmp_path / "daemon")).wait(90)
        daemon = int((tmp_path / "daemon").read_text())
        eventually(lambda: daemon in children(unit.process.pid))
        os.kill(daemon, signal.SIGKILL)
        eventually(lambda: daemon not in children(unit.process.pid))
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0


def test_a_worker_that_had_enough_jobs_is_replaced(
    tmp_path: Path, one_url: str, queue: Queue
) -> None:
    jobs = [queue.enqueue("shop:pid") for _ in range(30)]
    with started(tmp_path, one_url, "-q", "work", "-w", "1", "--max-jobs", "10") as unit:
        pids = [job.wait(60) for job in jobs]
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [10, 10, 10]
    assert "died" not in unit.log


def test_a_burst_ends_when_all_have_ended(tmp_path: Path, one_url: str, queue: Queue) -> None:
    jobs = [queue.enqueue("shop:pid") for _ in range(30)]
    with started(tmp_path, one_url, "-q", "work", "-w", "2", "--burst") as unit:
        assert unit.wait() == 0
    assert {job.refresh().state for job in jobs} == {"completed"}


def test_so_does_one_that_has_nothing_to_do(tmp_path: Path, one_url: str, queue: Queue) -> None:
    with started(tmp_path, one_url, "-q", "work", "-w", "2", "--max-idle", "200ms") as unit:
        assert unit.wait() == 0
    assert unit.log.count("stopping after 0.2 s") == 2


PROFILES = """
[tool.bide.workers.work]
queues = "work"
workers = 2
[tool.bide.workers.slow]
queues = "slow"
executor = "{executor}"
concurrency = 1
"""


def profiles(home: Path, executor: str = "process") -> None:
    (home / "pyproject.toml").write_text(PROFILES.format(executor=executor))
    with (home / "declares.py").open("w") as file:
        file.write("import bide\nfrom shop import note\nbide.Queue('work').task(note)\n")
        file.write("bide.Queue('slow').task(name='late')(note)\n")


def test_all_profiles_run_under_one_supervisor(tmp_path: Path, one_url: str, queue: Queue) -> None:
    profiles(tmp_path)
    slow = Queue("slow", url=one_url)
    with started(tmp_path, one_url, "declares", "--all") as unit:
        unit.logged(r"worker work\.\S+ serves work, 100 at once", 2)
        unit.logged(r"worker slow\.\S+ serves slow, 1 at once")
        assert len(unit.worker_pids()) == 3
        assert "WARNING" not in unit.log, "each queue is served, by one of them"
        job, other = queue.enqueue("shop:pid"), slow.enqueue("shop:pid")
        job.wait("20s")
        other.wait("20s")
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0
    slow.close()


def test_a_profile_that_cannot_be_meant_ends_them_all(tmp_path: Path, one_url: str) -> None:
    profiles(tmp_path, executor="proces")
    with started(tmp_path, one_url, "--all") as unit:
        assert unit.wait() == 2
    errors = [line for line in unit.log.splitlines() if line.startswith("Error")]
    assert len(errors) == 1
    assert errors[0].startswith("Error: worker profile slow: executor must be one of")
    assert "not 'proces'" in errors[0]
    assert "serves work" not in unit.log, "no worker was started"


def test_one_profile_is_one_worker_in_this_process(
    tmp_path: Path, one_url: str, queue: Queue
) -> None:
    profiles(tmp_path)
    with started(tmp_path, one_url, "--profile", "slow", "--burst") as unit:
        assert unit.wait() == 0
        assert "serves slow, 1 at once" in unit.log
        assert "all workers have stopped" not in unit.log, "there is no supervisor"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--profile", "wokr"], "no worker profile 'wokr'; did you mean 'work'?"),
        (["--profile", "mail"], "no worker profile 'mail'; there are work, slow."),
        (["--profile", "work", "--all"], "give one of these"),
        (["--profile", "work", "--profile", "slow"], "--profile is given twice; start a command"),
        (["work"], "There is no module 'work', but a worker profile of this name; write --profile"),
        (["--all", "-q", "work"], "leave out -q and --strategy"),
    ],
)
def test_profiles_that_cannot_be_meant(
    tmp_path: Path, one_url: str, args: list[str], says: str
) -> None:
    profiles(tmp_path)
    with started(tmp_path, one_url, *args) as unit:
        assert unit.wait() == 2
    assert says in unit.log


def test_without_profiles_the_error_says_where_to_write_them(tmp_path: Path, one_url: str) -> None:
    with started(tmp_path, one_url, "--all") as unit:
        assert unit.wait() == 2
    assert "write each into a table [tool.bide.workers.NAME] of pyproject.toml." in unit.log


def test_titles_say_what_each_is(tmp_path: Path, one_url: str, queue: Queue) -> None:
    def titles(pids: list[int]) -> list[str]:
        texts = [Path("/proc", str(pid), "cmdline").read_text("utf-8") for pid in pids]
        return [text.rstrip("\0").replace("\0", " ") for text in texts]

    with started(tmp_path, one_url, "-q", "work", "-w", "1", "-x", "process", "-c", "1") as unit:
        job = queue.enqueue("shop:slow", 60)
        unit.saw("slow")
        (worker,) = unit.worker_pids()
        (fork_server,) = children(worker)
        assert titles([unit.process.pid]) == ["bide supervisor work"]
        assert titles([fork_server])[0].startswith("bide fork server of ")
        assert titles(children(fork_server)) == [f"bide child: shop:slow (job {job.id})"]
        eventually(lambda: titles([worker]) == ["bide worker work: shop:slow"])
        unit.open_gate()
        eventually(lambda: titles(children(fork_server)) == ["bide child: idle"])
        unit.signal(signal.SIGTERM)
        assert unit.wait() == 0
