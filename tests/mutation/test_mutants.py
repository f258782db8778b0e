"""Every mutant can still be made; `make mutants` runs them all, and here is a sample."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from bide.protocol import scripts
from tests.mutation.mutant import ROOT, SOURCE, Mutant, Unapplied, read_mutants
from tests.mutation.page import page
from tests.mutation.run import run
from tests.support.eventually import eventually
from tests.support.processes import state

MUTANTS = read_mutants()
RQ = "contrib/rq/lua/"
"""Scripts that stand apart: all of them begin with what they share."""
NAMES = [f"{each.file}: {each.guard}" for each in MUTANTS]
every_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=NAMES)


@pytest.fixture(scope="session")
def compiler(one_server: object) -> Iterator[redis.Redis]:
    """A server that says whether it can read a script."""
    with redis.Redis.from_url(one_server.url) as client:  # type: ignore[attr-defined]
        yield client


@pytest.mark.slow
@every_mutant
def test_it_applies_and_can_be_read(
    mutant: Mutant, compiler: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (SOURCE / "bide" / mutant.file).read_text("utf-8")
    mutated = mutant.apply(text)
    assert mutated != text
    if mutant.file.endswith(".py"):
        compile(mutated, mutant.file, "exec")
    if not mutant.file.endswith(".lua"):
        return
    if mutant.file.startswith(RQ):
        common = (SOURCE / "bide" / RQ / "common.lua").read_text("utf-8")
        compiler.script_load(mutated if mutant.file.endswith("common.lua") else common + mutated)
        return
    path = mutant.file.removeprefix("protocol/lua/")
    read = scripts._read
    monkeypatch.setattr(scripts, "_read", lambda name: mutated if name == path else read(name))
    users = [path] if "/" not in path else _users_of(path)
    for name in users:
        made = scripts.load.__wrapped__(name.removesuffix(".lua"))
        assert compiler.script_load(made.text) == made.sha


def _users_of(include: str) -> list[str]:
    """A script that includes a file."""
    stem = Path(include).stem
    return [
        next(
            name
            for name in scripts.names()
            if stem in scripts._parts(scripts._split(f"{name}.lua")[1])
        )
    ]


@every_mutant
def test_its_test_is_there(mutant: Mutant) -> None:
    path, _, name = mutant.test.partition("::")
    assert f"def {name.partition('[')[0]}(" in (ROOT / path).read_text("utf-8"), mutant.test


def test_no_guard_is_written_down_twice() -> None:
    assert len({(each.file, each.old, each.new) for each in MUTANTS}) == len(MUTANTS)
    assert len(set(NAMES)) == len(NAMES)


def test_the_page_is_what_the_tables_say() -> None:
    """Run `make mutants`."""
    assert (ROOT / "docs" / "mutants.md").read_text("utf-8") == page(MUTANTS)


SAMPLE = Mutant(
    guard="nothing is taken before it is due",
    file="protocol/lua/include/due_time.lua",
    old="return now, now",
    new="return us, moment",
    test="tests/protocol/test_enqueue.py::test_a_moment_that_has_passed_means_now",
)


@pytest.mark.slow
def test_a_mutant_is_killed_where_its_test_fails() -> None:
    assert run(SAMPLE) == "killed"


@pytest.mark.slow
def test_a_mutant_survives_where_its_test_does_not_look() -> None:
    harmless = SAMPLE._replace(old="if us > now then", new="if now < us then")
    assert run(harmless) == "survived"


@pytest.mark.slow
def test_a_test_that_cannot_be_run_kills_nothing() -> None:
    assert run(SAMPLE._replace(test="tests/protocol/test_enqueue.py::test_nothing")) == "broken"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "fate"),
    [
        ("def looked_at():\n    assert False\n    yield", "broken"),
        ("def looked_at():\n    yield\n    assert False", "killed"),
    ],
    ids=["setup", "teardown"],
)
def test_what_cannot_be_set_up_kills_nothing(tmp_path: Path, what: str, fate: str) -> None:
    """But what is looked at when a test is over does."""
    test = tmp_path / "test_it.py"
    test.write_text(
        f"import pytest\n@pytest.fixture\n{what}\ndef test_it(looked_at):\n    pass\n", "utf-8"
    )
    assert run(SAMPLE._replace(test=f"{test}::test_it")) == fate


@pytest.mark.parametrize(("old", "times"), [("return never", 0), ("return", 5)])
def test_what_is_not_found_once_is_no_mutant(old: str, times: int) -> None:
    with pytest.raises(Unapplied, match=f"is found {times} times"):
        run(SAMPLE._replace(old=old))


def test_a_process_that_a_test_leaves_is_not_waited_for(tmp_path: Path) -> None:
    """It has its test's output open, and ends with the run."""
    test, left = tmp_path / "test_it.py", tmp_path / "pid"
    code = f"""
import os, pathlib
def test_it():
    pid = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "9999")
    pathlib.Path({str(left)!r}).write_text(str(pid))
"""
    test.write_text(code, "utf-8")
    assert run(SAMPLE._replace(test=f"{test}::test_it")) == "survived"
    eventually(lambda: state(int(left.read_text())) in ("", "Z"))
