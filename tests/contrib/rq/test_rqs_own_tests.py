"""RQ's own tests of queues, as RQ's source distribution has them, with our class in RQ's place.

They run three times: with `DelayQueue` as it is; with a small delay on every enqueue; and, of those
that the second time cannot hold, with the delay on jobs that depend on no others. `DIFFERS` and
`SKIPPED` name every test that does not pass, and why; one that is named and passes is an error.

The distribution is downloaded with pip, and kept in `build/rq-sdist`; nothing of it is copied here.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

import pytest
import rq

from bide.embedded import Server

pytestmark = pytest.mark.slow

VERSION = rq.__version__
RQ = tuple(int(part) for part in VERSION.split(".")[:2])
RQ_3 = RQ >= (3, 0)
ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent
KEPT = ROOT / "build" / "rq-sdist"

MODULES = (
    "test_queue",
    "test_queue_unique",
    "test_retry",
    "test_repeat",
    "test_dependencies",
    "test_job_dependency",
    "test_scheduler",
    "test_intermediate_queue",
    "test_group",
    "test_registry",
    "test_decorator",
    "test_job",
    "test_callbacks",
    *(["test_rate_limit"] if RQ_3 else []),
)
"""Of RQ's other test modules, none uses a queue for more than to feed a worker."""

SKIPPED = {
    "test_scheduler::test_work_with_ssl": "RQ skips it: it wants a TLS server on port 9736",
}

NAME = "the text of a queue begins with the name of its class, and the test knows RQ's"
DIFFERS = {"test_queue::test_create_queue": NAME}
if RQ < (2, 9):
    DIFFERS |= {"test_queue::test_create_queue_with_serializer": NAME}
PATCHED = "it replaces a method or a prefix of RQ's class, and the class in its place has its own"
if RQ_3:
    DIFFERS |= dict.fromkeys(
        (
            "test_repeat::test_repeat_state_survives_transaction_retry",
            "test_job_dependency::test_cancel_post_commit_drain_failure_leaves_consistent_state",
            "test_registry::test_enqueue_jobs_isolates_failures",
            "test_rate_limit::test_promotion_uses_base_class_namespace_prefixes",
        ),
        PATCHED,
    )

LATER = "it looks for a dependent in the instant its parent ends, and the dependent is delayed"
DIFFERS_DELAYED = DIFFERS | dict.fromkeys(
    (
        "test_queue::test_enqueue_dependents",
        "test_queue::test_enqueue_dependents_on_multiple_queues",
        "test_queue::test_enqueues_dependent_if_other_dependencies_finished",
        "test_dependencies::test_allow_failures_when_work_horse_killed",
        "test_dependencies::test_dependencies_are_met_at_execution_time",
        "test_dependencies::test_dependency_accepts_single_job",
        "test_dependencies::test_dependency_list_in_depends_on",
        "test_dependencies::test_enqueue_job_dependency",
        "test_dependencies::test_job_dependency",
        "test_job_dependency::test_create_and_cancel_job_enqueue_dependents",
        "test_job_dependency::test_create_and_cancel_job_enqueue_dependents_in_registry",
        "test_job_dependency::test_create_and_cancel_job_enqueue_dependents_with_pipeline",
        "test_job_dependency::test_execution_order_with_dual_dependency",
        "test_job_dependency::test_execution_order_with_sole_dependency",
        "test_registry::test_enqueue_dependents_when_parent_job_is_abandoned",
    ),
    LATER,
)
if RQ_3:
    DIFFERS_DELAYED |= dict.fromkeys(
        (
            "test_dependencies::test_allow_failure_when_dependency_has_already_failed",
            "test_job_dependency::test_cancel_enqueue_dependents_retries_cleanly_on_watcherror",
            "test_rate_limit::test_enqueue_with_rate_limit_and_dependencies",
        ),
        LATER,
    )
AT_GATE = "it looks for a dependent in its queue's registry, and a delayed one is in the gate's"
DIFFERS_DELAYED |= dict.fromkeys(
    (
        "test_dependencies::test_enqueue_job_dependency_score",
        "test_registry::test_register_dependency",
    ),
    AT_GATE,
)
if RQ_3:
    DIFFERS_DELAYED |= {
        "test_job_dependency::test_cancel_does_not_queue_dependents_before_cancel_commits": AT_GATE
    }


@pytest.fixture(scope="module")
def source() -> Path:
    """The unpacked distribution."""
    unpacked = KEPT / f"rq-{VERSION}"
    if not unpacked.exists():
        KEPT.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=KEPT) as there:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
            command += ["--no-binary", ":all:", "--dest", there, f"rq=={VERSION}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode != 0:
                give_up = pytest.fail if os.environ.get("CI") else pytest.skip
                give_up(f"pip cannot download rq {VERSION}: {done.stderr.strip()[-200:]}")
            with tarfile.open(next(Path(there).glob("*.tar.gz"))) as archive:
                archive.extractall(there, filter="data")
            with suppress(OSError):  # another process of this run was faster
                (Path(there) / unpacked.name).rename(unpacked)
    assert (unpacked / "tests" / "test_queue.py").exists(), "this release has no tests in it"
    return unpacked


def outcomes(
    server: Server, source: Path, module: str, *, delay: float, dependents: str
) -> dict[str, str]:
    """How each test of a module of RQ's ended: "passed", "skipped" or what went wrong."""
    report = server.directory / "report.xml"
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(source)),
            *("-p", "substitute", "-p", "no:cacheprovider", "-W", "ignore"),
            *(f"--junitxml={report}", f"tests/{module}.py"),
        ],
        cwd=source,
        env=os.environ
        | {
            "PYTHONPATH": os.pathsep.join(map(str, (HERE / "suite", source, ROOT / "src"))),
            "SUITE_PORT": server.url.rpartition(":")[2].partition("/")[0],
            "RUN_SLOW_TESTS_TOO": "1",
            "SUITE_DELAY": str(delay),
            "SUITE_DEPENDENTS": dependents,
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    ended = {}
    for case in ElementTree.parse(report).iter("testcase"):
        wrong = [f"{part.tag}: {part.get('message')}" for part in case if part.tag != "skipped"]
        wrong = [text for text in wrong if not text.startswith("system-")]
        skipped = "skipped" if case.find("skipped") is not None else "passed"
        ended[f"{module}::{case.attrib['name']}"] = "".join(wrong) or skipped
    return ended


def assert_known(module: str, ended: dict[str, str], differs: dict[str, str]) -> None:
    failed = {name: text for name, text in ended.items() if text not in ("passed", "skipped")}
    assert failed.keys() == of(module, differs), failed
    assert {name for name, text in ended.items() if text == "skipped"} == of(module, SKIPPED)
    assert "passed" in ended.values()


def of(module: str, names: dict[str, str]) -> set[str]:
    return {name for name in names if name.startswith(f"{module}::")}


@pytest.mark.parametrize("module", MODULES)
def test_they_pass_with_the_class(
    tmp_server: Callable[..., Server], source: Path, module: str
) -> None:
    ended = outcomes(tmp_server(tcp=True), source, module, delay=0, dependents="delayed")
    assert_known(module, ended, DIFFERS)


@pytest.mark.parametrize("module", MODULES)
def test_they_pass_with_a_delay_on_every_enqueue(
    tmp_server: Callable[..., Server], source: Path, module: str
) -> None:
    ended = outcomes(tmp_server(tcp=True), source, module, delay=0.001, dependents="delayed")
    assert_known(module, ended, DIFFERS_DELAYED)


REST = {name: why for name, why in DIFFERS_DELAYED.items() if why in (LATER, AT_GATE)}


@pytest.mark.parametrize("module", sorted({name.partition("::")[0] for name in REST}))
def test_the_rest_pass_with_a_delay_on_all_but_dependents(
    tmp_server: Callable[..., Server], source: Path, module: str
) -> None:
    ended = outcomes(tmp_server(tcp=True), source, module, delay=0.001, dependents="at once")
    assert {ended[name] for name in of(module, REST)} == {"passed"}
