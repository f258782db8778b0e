"""Mutated inputs in great number: `python -m tests.fuzz`, or `make fuzz`.

Prints its seed; with `--seed` it is the same again. An input that is not borne is printed with what
makes it again, and ends the run.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import math
import secrets
import time
from collections.abc import Iterator

from bide.embedded import Server
from tests.fuzz import pure, served
from tests.fuzz.mutate import Mutator

HANG = 60.0
"""Seconds after which a batch hangs: stacks are printed, and the run ends."""


class NotBorne(Exception):
    """An input that was met with a crash, or harmed a neighbour."""


def share(inputs: int) -> dict[str, int]:
    """How many inputs each target gets; together at least so many."""
    shares = {name: part[0] for name, part in (*pure.TARGETS.items(), *served.TARGETS.items())}
    return {name: math.ceil(inputs * part / sum(shares.values())) for name, part in shares.items()}


def attack(target: str, seed: str, numbers: range, url: str) -> None:
    """Try inputs on a target.

    Raises:
        NotBorne: one was not borne; the message says how to make it again.
    """
    try:
        if target in pure.TARGETS:
            _, check, corpus = pure.TARGETS[target]
            for number in numbers:
                began = time.monotonic()
                check(Mutator(seed, target, number), corpus)
                assert time.monotonic() - began < 5, "it took too long"
                if number % 500 == 0:
                    faulthandler.dump_traceback_later(HANG, exit=True)
            return
        _, size, batch = served.TARGETS[target]
        with served.opened(url) as site:
            for number in range(numbers.start, numbers.stop, size):
                faulthandler.dump_traceback_later(HANG, exit=True)
                some = range(number, min(number + size, numbers.stop))
                batch(site, [Mutator(seed, target, n) for n in some])
    except BaseException as error:
        again = f"--seed {seed} --target {target!r} --first {number} --inputs 1"
        raise NotBorne(f"{target}: {type(error).__name__}: {error}\n  again: {again}") from error
    finally:
        faulthandler.cancel_dump_traceback_later()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", default=secrets.token_hex(4))
    parser.add_argument("--target", choices=[*pure.TARGETS, *served.TARGETS])
    parser.add_argument("--first", type=int, default=0)
    told = parser.parse_args()
    print(f"seed {told.seed}", flush=True)
    logging.getLogger("bide").setLevel(logging.CRITICAL)
    total, began = 0, time.monotonic()
    with Server.start() as server:
        for target, count in _plan(told.target, told.inputs):
            start = time.monotonic()
            try:
                attack(target, told.seed, range(told.first, told.first + count), server.url)
            except NotBorne as error:
                print(f"NOT BORNE  {error}")
                raise
            total += count
            print(f"{target:16}{count:>8,}  {time.monotonic() - start:6.1f} s", flush=True)
    print(f"{total:,} mutated inputs in {time.monotonic() - began:.0f} s: no crash, no hang, "
          "no neighbour lost")  # fmt: skip


def _plan(target: str | None, inputs: int) -> Iterator[tuple[str, int]]:
    yield from [(target, inputs)] if target else share(inputs).items()


if __name__ == "__main__":
    main()
