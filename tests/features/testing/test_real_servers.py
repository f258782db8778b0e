"""Tests that take no fixture of bide: the plugin keeps them off servers that they do not name."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytestmark = pytest.mark.slow

pytest_plugins = "pytester"

Run = Callable[..., pytest.RunResult]

SHOP = """
    import bide

    queue = bide.Queue("shop", url="redis://ann:secret@127.0.0.1:1", retry_for=0)
    elsewhere = bide.Queue("elsewhere", retry_for=0)
    events = bide.AsyncQueue("events", retry_for=0)

    @queue.task
    def send(to: int) -> int:
        return to
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs pytest in a process of its own, on one test module beside `shop`.

    What refuses to connect is no server; $BIDE_URL leads there, too.
    """
    for name in ("PYTEST_ADDOPTS", "PYTEST_DISABLE_PLUGIN_AUTOLOAD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("BIDE_URL", "redis://127.0.0.1:1")
    pytester.makepyfile(shop=SHOP)

    def run(test: str, *options: str, passed: int = 0, **outcomes: int) -> pytest.RunResult:
        pytester.makepyfile(test_shop=test)
        also = ["-pno:asyncio", "-pno:valkey", "-Werror", "--strict-markers"]
        result = pytester.runpytest_subprocess(*also, *options, timeout=300)
        result.assert_outcomes(passed=passed, **outcomes)
        return result

    return run


FORGOTTEN = """
    import asyncio

    import bide
    import shop

    def test_enqueue():
        shop.send.enqueue(1)

    def test_look():
        shop.elsewhere.counts()

    def test_events():
        with shop.elsewhere.events():
            pass

    def test_async():
        async def enqueue():
            await shop.events.enqueue("x:y")
        asyncio.run(enqueue())

    def test_made_here():
        bide.Queue("here").enqueue("x:y")

    def test_data():
        bide.DelayQueue("data").push(1)

    def test_schedule():
        shop.queue.schedules.upsert("hourly", shop.send, [1], every="1h")

    def test_worker():
        bide.Worker(shop.queue).run(burst=True)

    def test_worker_by_name():
        bide.Worker("shop").run(burst=True)

    def test_imported_late():
        import late
        late.queue.enqueue("x:y")

    def test_dashboard():
        from bide.web import app
        page = app(authorize=lambda request: "viewer")
        scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "query_string": b""}
        async def send(message): ...
        asyncio.run(page(scope, None, send))
"""


def test_a_test_that_forgot_the_fixture_is_told_so(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(late='import bide\nqueue = bide.Queue("late", url="redis://127.0.0.1:1")')
    result = run(FORGOTTEN, failed=11)
    lines = [line for line in result.outlines if line.startswith("E  ")]
    assert [line.partition(":")[0].split()[-1] for line in lines] == ["bide.errors.UsageError"] * 11
    result.stdout.fnmatch_lines(
        "E *UsageError: In this test the queue 'shop' would use the real server "
        "redis://ann:*@127.0.0.1:1; take the fixture bide_test or bide_eager, or mark a test that "
        "is meant to use that server with @pytest.mark.bide_real_server."
    )
    assert "the worker would use" in result.stdout.str()
    assert "secret@" not in "".join(lines)


def test_what_needs_no_server_needs_no_fixture(run: Run) -> None:
    test = """
        import shop

        def test_it():
            assert shop.send(1) == 1
            assert shop.queue.url.endswith("127.0.0.1:1")
            assert shop.queue.keys["meta"] == "bide:{shop}"
            assert shop.send.prepare(1).id
            shop.queue.close()
    """
    run(test, passed=1)


NAMED = """
    import asyncio

    import bide
    import pytest
    import shop

    AWAY = "redis://127.0.0.1:1"

    @pytest.fixture(scope="session")
    def own():
        queue = bide.Queue("own", url=AWAY, retry_for=0)
        yield queue
        queue.close()

    @pytest.fixture(scope="session")
    def pile():
        return bide.DelayQueue("pile", url=AWAY, retry_for=0)

    @pytest.mark.bide_real_server
    def test_a_marked_test_may_use_any(own, pile):
        with pytest.raises(bide.ServerUnavailable):
            shop.send.enqueue(1)

    def test_so_may_any_test_a_queue_that_a_fixture_makes_with_a_url(own, pile):
        with pytest.raises(bide.ServerUnavailable):
            own.enqueue("x:y")
        with pytest.raises(bide.ServerUnavailable):
            pile.push(1)
        with pytest.raises(bide.ServerUnavailable):
            bide.Worker(own).run(burst=True)
        with pytest.raises(bide.ServerUnavailable):
            bide.Worker("shop", url=AWAY).run(burst=True)

    def test_and_what_it_sets_in_the_environment(monkeypatch):
        monkeypatch.setenv("BIDE_URL", "redis://127.0.0.1:1/3")
        with pytest.raises(bide.ServerUnavailable):
            bide.Queue("x", retry_for=0).enqueue("x:y")
        with pytest.raises(bide.UsageError, match="real server"):
            shop.send.enqueue(1)

    def test_the_mark_holds_for_one_test():
        with pytest.raises(bide.UsageError, match="real server"):
            shop.send.enqueue(1)
        with pytest.raises(bide.UsageError, match="real server"):
            bide.Worker([shop.queue, bide.Queue("shop", url=shop.queue.url)]).run(burst=True)

    def test_the_bed(bide_test):
        shop.send.enqueue(1)
        assert bide.Queue("new").enqueue(shop.send, 2).created
        assert len(bide_test.run()) == 2

    def test_eager(bide_eager):
        assert shop.send.enqueue(1).result == 1

    def test_after_them():
        with pytest.raises(bide.UsageError, match="real server"):
            shop.send.enqueue(1)
"""


@pytest.mark.parametrize("options", [(), ("-n2",)])
def test_a_server_that_the_test_names_is_no_mistake(run: Run, options: tuple[str, ...]) -> None:
    run(NAMED, *options, passed=7)


def test_a_project_may_allow_real_servers_everywhere(run: Run, pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml("[tool.pytest.ini_options]\nbide_real_server = true")
    test = FORGOTTEN.replace("import late", "import shop as late")
    result = run(test, failed=10, passed=1)  # the dashboard answers with an error
    assert "UsageError" not in result.stdout.str()
    assert "ServerUnavailable" in result.stdout.str()


def test_where_a_test_imports_bide_itself_too(run: Run) -> None:
    test = """
        import sys

        def test_it():
            assert "bide" not in sys.modules
            import shop
            import pytest
            with pytest.raises(Exception, match="real server"):
                shop.send.enqueue(1)
    """
    run(test, "-pno:anyio", "-pno:xdist", "-pno:hypothesispytest", passed=1)


def test_settings_of_django_are_not_the_tests(run: Run) -> None:
    pytest.importorskip("django_tasks")
    test = """
        import pytest
        from django.conf import settings

        settings.configure(
            DATABASES={},
            TASKS={"default": {
                "BACKEND": "bide.contrib.django.Backend",
                "OPTIONS": {"url": "redis://127.0.0.1:1"},
            }},
        )
        import django
        django.setup()
        from django_tasks import task

        @task
        def send(): ...

        def test_forgotten():
            with pytest.raises(Exception, match="real server"):
                send.enqueue()

        def test_bed(bide_test):
            send.enqueue()
            bide_test.assert_enqueued(send)
    """
    run(test, passed=2)
