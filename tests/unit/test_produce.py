"""When a job is due, as it travels."""

from __future__ import annotations

from typing import Any

import pytest

from bide.errors import UsageError
from bide.ops.produce import check_when


@pytest.mark.parametrize("text", ["+0", "+1000000", "=1700000000000000"])
def test_what_says_when_is_let_through(text: str) -> None:
    assert check_when(text) == text


@pytest.mark.parametrize("text", ["", "+", "10m", "=-1", "+1.5", "+" + "9" * 17, "+1\n", None, 5])
def test_what_a_script_would_refuse_is_refused(text: Any) -> None:
    with pytest.raises(UsageError, match="does not say when"):
        check_when(text)
