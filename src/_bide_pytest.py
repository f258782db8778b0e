"""The fixtures of bide for pytest.

pytest loads this module at its start wherever bide is installed, so it imports nothing of bide
before a test asks for a fixture. It stands beside the package because importing a module of a
package imports the package.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from bide.testing import Eager, TestBed


@pytest.fixture
def bide_test() -> Iterator[TestBed]:
    """A `bide.testing.TestBed`: every queue is on a server of the tests' own, with its clock."""
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
    """A `bide.testing.Eager`: no server; every job runs where it is enqueued."""
    from bide import testing

    with testing.eager() as eager:
        yield eager
