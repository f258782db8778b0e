"""The first tier: each fault once, in small. `make chaos` runs them long, and writes the report.

The seed is printed where something does not hold; $BIDE_CHAOS_SEED gives it again.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.chaos.catalogue import FAULTS
from tests.chaos.scene import Scene
from tests.conftest import BINARIES

SCALE = 0.5


@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_what_must_hold_holds(name: str, tmp_path: Path) -> None:
    if reason := FAULTS[name].missing():
        pytest.skip(reason)
    seed = int(os.environ.get("BIDE_CHAOS_SEED") or random.randrange(10**6))
    again = f"BIDE_CHAOS_SEED={seed} pytest 'tests/chaos/test_faults.py' -k {name}"
    binary = next(iter(BINARIES.values()))
    with Scene(FAULTS[name](), tmp_path / "scene", seed, SCALE, binary) as scene:
        print(again, *scene.plan, sep="\n")
        verdict = scene.play()
    print(verdict)
    assert verdict.holds, "\n".join([again, *verdict.account.findings])
    assert verdict.injections == len(scene.plan) >= 1
