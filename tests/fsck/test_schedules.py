"""`bide fsck` on schedules corrupted by hand."""

from __future__ import annotations

import pytest

from tests.fsck.case import Case
from tests.fsck.conftest import Full
from tests.fsck.schedules import SCHEDULES
from tests.fsck.test_corruptions import check


@pytest.mark.slow
@pytest.mark.parametrize("each", SCHEDULES, ids=[each.name for each in SCHEDULES])
def test_what_is_wrong_of_schedules_is_found_and_repaired(each: Case, full: Full) -> None:
    check(each, full)
