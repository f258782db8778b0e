"""Fixtures every test may use: servers of the tests' own, of each flavour this machine has.

- ``server``: runs the test once on each server; ``url`` is its address, emptied before the test.
- ``one_server``, ``one_url``: the same on one server only, for what no server can change.
- ``direct``: the client library itself, on that one; ``proxy``: a line to it that can fail.
- ``tmp_server``: starts servers that the test may kill and restart.

The server is the wheel's Valkey ("valkey"). ``BIDE_TEST_SERVERS`` names others ("redis", or
"valkey,redis"); "redis" is Debian's. With ``BIDE_TEST_EVERYWHERE=1`` the tests run on both, and on
those that `tests.support.fetch_servers` has fetched. A test on another server than the first has
the mark ``slow``, as has each test that takes more than a second or so.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import redis
from anyio.from_thread import start_blocking_portal
from hypothesis import settings

from bide import logs
from bide.embedded import Server, wheel_server
from tests.support.cpu_waits import Witness
from tests.support.opened_connections import OPENED
from tests.support.programs import distribution_server, fetched_servers
from tests.support.proxy import Proxy

# A busy machine is no counterexample, and a test that passes once passes again. Use
# `--hypothesis-profile=random` to try other examples, after a change of a model for instance.
settings.register_profile("random", deadline=None)
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background so, and programs that tests start would inherit it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

ServerFor = Callable[[str], Server]
"""From a server's name, "valkey" or "redis", to the one that runs for the whole session."""


EVERYWHERE = bool(os.environ.get("BIDE_TEST_EVERYWHERE"))
"""Whether tests run on all servers that there are, as `make everywhere` has them."""


FETCHED_SERVERS = fetched_servers() if EVERYWHERE else {}
"""Those of other versions: name → program."""


def _binaries() -> dict[str, str]:
    """The servers to test on: name → program, in the order in which the tests run."""
    present = {"valkey": wheel_server(), "redis": distribution_server()}
    present |= {
        name: path for name, path in FETCHED_SERVERS.items() if path not in present.values()
    }
    wanted = os.environ.get("BIDE_TEST_SERVERS")
    names = list(present) if EVERYWHERE else ["valkey"]
    if wanted:
        names = [name.strip() for name in wanted.split(",")]
    binaries: dict[str, str] = {}
    for name in names:
        if name not in present:
            raise pytest.UsageError(f"BIDE_TEST_SERVERS knows {list(present)}, not {name!r}")
        binary = present[name]
        if binary is not None:
            binaries[name] = binary
        elif wanted or name == "valkey":
            cure = "install redis-server" if name == "redis" else "make .venv/has-dev"
            raise pytest.UsageError(f"the tests' {name} server is missing: {cure}")
    return binaries


BINARIES = _binaries()

SERVERS = [
    pytest.param(name, marks=() if place == 0 else pytest.mark.slow)
    for place, name in enumerate(BINARIES)
]
"""The names of the servers, to parametrize by: `make test` uses the first."""


@pytest.hookimpl(trylast=True)  # after pytest has set its hook
def pytest_configure(config: pytest.Config) -> None:
    OPENED.install()


@pytest.fixture(scope="session")
def server_for() -> Iterator[ServerFor]:
    with contextlib.ExitStack() as stack:

        @cache
        def start(name: str) -> Server:
            return stack.enter_context(Server.start(binary=BINARIES[name]))

        yield start


@pytest.fixture(scope="session", params=SERVERS)
def server(request: pytest.FixtureRequest, server_for: ServerFor) -> Server:
    name: str = request.param
    return server_for(name)


@pytest.fixture(scope="session")
def one_server(server_for: ServerFor) -> Server:
    return server_for(next(iter(BINARIES)))


@pytest.fixture
def url(server: Server) -> str:
    return _emptied(server)


@pytest.fixture
def one_url(one_server: Server) -> str:
    return _emptied(one_server)


@pytest.fixture
def direct(one_url: str) -> Iterator[redis.Redis]:
    """The client library itself, past any proxy: to see what stands there, or to spoil it."""
    with redis.Redis.from_url(one_url) as client:
        yield client


@pytest.fixture
def proxy(one_url: str) -> Iterator[Proxy]:
    with Proxy(one_url) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def portal() -> Iterator[Any]:
    """An event loop in a thread, for what is awaited."""
    with start_blocking_portal("asyncio") as portal:
        yield portal


@pytest.fixture(params=["sync", "aio"])
def kind(request: pytest.FixtureRequest) -> str:
    """Which of the two kinds: what blocks, or what is awaited."""
    name: str = request.param
    return name


@pytest.fixture
def signing(monkeypatch: pytest.MonkeyPatch) -> str:
    """A key of this process, and of those that it starts."""
    monkeypatch.setenv("BIDE_SIGNING_KEYS", keys := f"one:{'1' * 32}")
    return keys


@pytest.fixture
def witness() -> Iterator[Witness]:
    """Looks at how long this process and its servers wait for a processor."""
    with Witness() as witness:
        yield witness


@pytest.fixture
def tmp_server() -> Iterator[Callable[..., Server]]:
    """A function with the parameters of `Server.start`; what it starts ends with the test.

    Unless told otherwise, it starts the same server that ``one_server`` is.
    """
    with contextlib.ExitStack() as stack:

        def start(**kwargs: Any) -> Server:
            kwargs.setdefault("binary", next(iter(BINARIES.values())))
            return stack.enter_context(Server.start(**kwargs))

        yield start


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"  # the client library's own event loop; it knows no other


def _emptied(server: Server) -> str:
    with redis.Redis.from_url(server.url) as client:
        client.flushall()
    return server.url


@pytest.fixture
def own_logging(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a test sets up to log with is gone after it."""
    root, ours = logging.getLogger(), logging.getLogger("bide")
    before = root.handlers[:], root.level, ours.level
    monkeypatch.setattr(logs, "_settings", None)
    yield
    root.handlers[:], root.level = before[0], before[1]
    ours.setLevel(before[2])
