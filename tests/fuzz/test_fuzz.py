"""The first tier: some inputs of every target, others in each run; `make fuzz` tries 100,000."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator

import pytest

from tests.fuzz import pure, served
from tests.fuzz.__main__ import NotBorne, attack, share
from tests.fuzz.mutate import Mutator

SEED = secrets.token_hex(4)
INPUTS = 8_000


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    log = logging.getLogger("bide")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)


@pytest.mark.slow
@pytest.mark.parametrize(("target", "count"), share(INPUTS).items())
def test_nothing_crashes_hangs_or_harms_a_neighbour(target: str, count: int, one_url: str) -> None:
    attack(target, SEED, range(count), one_url)


def test_an_input_can_be_made_again() -> None:
    first, again, other = (Mutator(seed, "bodies", 7).bytes(pure.BODIES) for seed in "aab")
    assert first == again != other


def test_what_is_not_borne_is_said_with_what_makes_it_again(
    one_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The harness can fail, in both kinds of target."""

    def crash(*_: object) -> None:
        raise KeyError("x")

    monkeypatch.setitem(pure.TARGETS, "notes", (0.1, crash, []))
    monkeypatch.setitem(served.TARGETS, "records met", (0.1, 5, crash))
    with pytest.raises(NotBorne, match=r"notes: KeyError: 'x'\s+again: --seed s --target 'notes'"):
        attack("notes", "s", range(3, 9), one_url)
    with pytest.raises(NotBorne, match=r"--first 3 --inputs 1"):
        attack("records met", "s", range(3, 9), one_url)
