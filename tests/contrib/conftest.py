"""What the tests of several libraries share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.register_assert_rewrite("tests.support.relays")

from tests.support.postgres import Postgres, missing  # noqa: E402


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    if reason := missing():
        pytest.skip(reason)
    with Postgres() as server:
        yield server
