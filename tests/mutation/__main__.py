"""`python -m tests.mutation`: makes every mutant, and sees whether its test notices.

First all tests that are named run against the package as it is, and must pass. Exits with 1 if a
mutant survives, and then writes no page.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutation.mutant import Mutant, Unapplied, read_mutants
from tests.mutation.page import page
from tests.mutation.run import Fate, passes, run


def main() -> int:
    """Run all mutants, or some; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("--only", default="", help="those whose file or guard has this text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="how many at a time")
    parser.add_argument("--write", type=Path, help="where to write the page, if all are killed")
    options = parser.parse_args()
    mutants = [m for m in read_mutants() if options.only in f"{m.file} {m.guard}"]
    begun = time.monotonic()
    as_it_is = passes(sorted({mutant.test for mutant in mutants}))
    if as_it_is.returncode != 0:
        print(as_it_is.stdout, "Not all of the tests pass without any mutant.", sep="\n")
        return 1
    with ThreadPoolExecutor(options.jobs) as pool:
        fates = list(pool.map(_run, mutants))
    survivors = [mutant for mutant, fate in zip(mutants, fates, strict=True) if fate != "killed"]
    seconds = time.monotonic() - begun
    print(f"{len(mutants)} mutants, {len(mutants) - len(survivors)} killed, in {seconds:.0f} s")
    if not survivors and options.write and not options.only:
        options.write.write_text(page(mutants), "utf-8")
    return 1 if survivors or not mutants else 0


def _run(mutant: Mutant) -> Fate | str:
    try:
        fate: Fate | str = run(mutant)
    except Unapplied as error:
        fate = str(error)
    print(f"{fate:<8}  {mutant.file}: {mutant.guard}  ({mutant.test})", flush=True)
    return fate


if __name__ == "__main__":
    sys.exit(main())
