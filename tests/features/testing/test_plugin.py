"""The pytest plugin, in runs of pytest of its own: alone, with xdist, anyio and pytest-asyncio."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.slow

pytest_plugins = "pytester"

Run = Callable[..., pytest.RunResult]

SHOP = """
    import bide

    queue = bide.Queue("mail", url="redis://127.0.0.1:1")
    events = bide.AsyncQueue("events", url="redis://127.0.0.1:1")

    @queue.task
    def send(to: int) -> int:
        return to

    @events.task
    async def publish(to: int) -> int:
        return to
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs pytest in a process of its own, on one test module beside `shop`."""
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    pytester.makepyfile(shop=SHOP)

    def run(
        test: str, *options: str, asyncio: bool = False, passed: int = 0, **outcomes: int
    ) -> pytest.RunResult:
        pytester.makepyfile(test_shop=test)
        also = ["-oasyncio_default_fixture_loop_scope=function"] if asyncio else ["-pno:asyncio"]
        also += ["-Werror", "-pno:valkey"]
        result = pytester.runpytest_subprocess(*also, *options, timeout=60)
        result.assert_outcomes(passed=passed, **outcomes)
        return result

    return run


TESTS = """
    import pytest
    import shop

    def test_jobs(bide_test):
        shop.send.later("30m").enqueue(1)
        bide_test.assert_enqueued(shop.send, 1, delay="30m")
        (job,) = bide_test.run(until="1h")
        assert job.result == 1

    @pytest.mark.parametrize("to", range(6))
    def test_each_is_alone(bide_test, to):
        assert bide_test.enqueued() == []
        shop.send.enqueue(to)
        bide_test.assert_enqueued(shop.send, to, count=1)

    def test_eager(bide_eager):
        assert shop.send.enqueue(1).result == 1
        assert len(bide_eager.jobs) == 1
"""

ASYNC_TESTS = """
    import pytest
    import shop

    @pytest.mark.{mark}
    @pytest.mark.parametrize("to", range(3))
    async def test_jobs(bide_test, to):
        await shop.publish.enqueue(to)
        bide_test.assert_enqueued(shop.publish, to)
        (job,) = await bide_test.arun()
        assert job.result == to

    @pytest.mark.{mark}
    async def test_eager(bide_eager):
        job = await shop.publish.enqueue(1)
        assert await job.wait() == 1
"""

ANYIO = """
    @pytest.fixture
    def anyio_backend():
        return "asyncio"
"""


def test_the_fixtures(run: Run) -> None:
    run(TESTS, passed=8)


def test_with_xdist_each_process_has_its_own_server(run: Run) -> None:
    run(TESTS, "-n2", passed=8)


def test_with_pytest_asyncio(run: Run) -> None:
    run(ASYNC_TESTS.format(mark="asyncio"), "-pno:anyio", asyncio=True, passed=4)


def test_with_anyio(run: Run) -> None:
    run(ASYNC_TESTS.format(mark="anyio") + ANYIO, passed=4)


def test_a_test_that_fails_shows_the_test_and_the_task(run: Run) -> None:
    test = """
        import shop

        @shop.queue.task
        def fail():
            raise ValueError("broken")

        def test_run(bide_test):
            fail.enqueue()
            bide_test.run()

        def test_assert(bide_test):
            fail.enqueue()
            bide_test.assert_enqueued(fail, delay="1h")
    """
    result = run(test, failed=2)
    text = result.stdout.str()
    assert "JobFailed: test_shop:fail() failed, in attempt 1: ValueError: broken" in text
    assert "AssertionError: No job test_shop:fail(...), due in 1h, is enqueued." in text
    assert "test_shop:fail(), waiting, due now, on mail" in text
    assert "bed.py" not in text, "the frames of this library are hidden"


def test_without_a_server_it_says_what_is_missing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BIDE_SERVER", "no-such-server")
    result = run("def test_it(bide_test): ...", errors=1)
    result.stdout.fnmatch_lines(["*bide_test needs a server of its own: *no-such-server*"])
    assert "Traceback" not in result.stdout.str()


def test_where_nobody_asks_for_it_nothing_of_bide_is_imported(run: Run) -> None:
    test = """
        import sys

        def test_it():
            assert "_bide_pytest" in sys.modules
            assert not {"bide", "redis", "asyncio"} & set(sys.modules)
    """
    run(test, "-pno:anyio", "-pno:xdist", "-pno:hypothesispytest", passed=1)


def test_it_can_be_switched_off(run: Run) -> None:
    run("def test_it(bide_test): ...", "-pno:bide", errors=1)
