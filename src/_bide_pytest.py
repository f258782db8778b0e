"""The pytest plugin of bide: its fixtures, and a guard that keeps other tests off real servers.

pytest loads this module at its start if bide is installed, so it imports bide only when a test
requests a fixture. It is outside the package, because importing a module of a package imports the
package. Queues and workers ask it for permission (`bide.queue.binding`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bide.testing import Eager, TestBed

MARK = "bide_real_server"
"""The marker, and the setting of pytest.ini or pyproject.toml, that allow real servers."""

runs = False
"""Whether a test or one of its fixtures runs."""

_refuses = False
"""Whether the running test may use only a server that it names."""

_url: str | None = None
"""The value of $BIDE_URL before the first test."""


@pytest.fixture
def bide_test() -> Iterator[TestBed]:
    """A `bide.testing.TestBed`: every queue uses a server for tests, whose clock the test moves."""
    from bide import testing
    from bide.embedded import ServerNotFound

    try:
        bed = testing.start()
    except ServerNotFound as error:
        pytest.fail(f"bide_test needs a server of its own: {error}.", pytrace=False)
    with bed:
        yield bed


@pytest.fixture
def bide_eager() -> Iterator[Eager]:
    """A `bide.testing.Eager`: without a server, every job runs inside its enqueue."""
    from bide import testing

    with testing.eager() as eager:
        yield eager


# -- real servers


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the setting."""
    parser.addini(MARK, "Whether all tests may use the servers that queues name.", "bool", False)


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker."""
    config.addinivalue_line("markers", f"{MARK}: the test may use the servers that queues name.")


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Record the server of the environment, before a test or a fixture changes it."""
    global _url
    _url = os.environ.get("BIDE_URL")


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Record that a test runs, and what it may use; pytest may itself run inside of a test."""
    global runs, _refuses
    before = runs, _refuses
    runs, _refuses = True, not (item.get_closest_marker(MARK) or item.config.getini(MARK))
    yield
    runs, _refuses = before


def refusal(who: str, url: str) -> str | None:
    """Return why the running test may not use a server; None if it may.

    Args:
        who: the object that is about to use it, and to which the test gave no URL.
        url: the server.
    """
    named = os.environ.get("BIDE_URL")
    if not _refuses or (named != _url and named == url):
        return None
    from bide.client.url import hide_password

    return (
        f"In this test {who} would use the real server {hide_password(url)}; take the fixture "
        "bide_test or bide_eager, or mark a test that is meant to use that server with "
        f"@pytest.mark.{MARK}."
    )
