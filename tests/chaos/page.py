"""Writes `docs/reliability.md` from the figures in `docs/reliability.json`, and what they mean.

`make chaos` measures, and writes both; a test holds the page to be what this makes of the figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.chaos import figures
from tests.chaos.catalogue import FAULTS, ROWS
from tests.chaos.figures import Figures
from tests.chaos.stage import SLOW_US

DOCS = Path(__file__).parents[2] / "docs"
DATA = DOCS / "reliability.json"
PAGE = DOCS / "reliability.md"

_HEAD = """\
# Reliability

What was done to bide, and what it did. `make chaos` starts servers, workers as processes of
their own, and a producer; breaks one thing after another under load; and then holds the books
against each other: what the producer was told, what each job wrote into a ledger when it began
and when it ended, and what the server holds. The figures below are those of the latest run of
each, also [as JSON](reliability.json). `make test` runs the same in small.

## What must hold

1. **Nothing is lost.** Each job whose enqueue was answered is in exactly one state.
2. **One outcome.** Each attempt has at most one outcome, that of the run that held the job last.
   The server's totals, its records and the results say the same.
3. **Not twice without a cause.** An attempt runs once; for each fault that hit its worker while
   it ran, at most once more. Such a run is *explained*. Where a fault may cost nothing but time
   (a lost reply, say), it explains nothing. A machine that is too busy is the only other cause: the
   system counts how long each thread waited for a processor, and a worker that waited, with its
   server, for half a lease within one may have lost it; for an eighth, if its log says that a
   renewal failed at that time. Such runs are also counted apart.
4. **Never early.** No run begins before it is due, by the server's clock.
5. **In order.** One worker that runs one job at a time runs what is due by due time, then by id.
6. **Tokens grow.** No two claims of a job have the same token.
7. **The books agree.** Sets and hashes on the server name the same jobs, and no key exists that
   [the list of keys](keys.md) does not name.
8. **It drains.** After the last fault all jobs end within a lease, their back-off and ten
   seconds. Time for which a worker and its server waited for a processor does not count.
9. **Nothing is left behind.** No process, thread or descriptor outlives its worker.
10. **Together as promised.** Jobs of a group run one at a time and in order; of a queue no more at
    once, and in a second, than its limits let; a job that waits for others, after them; each
    gathered item is in one finished job; each time of a schedule is fired once.

Each fault is injected at moments that are drawn from a seed, which is printed. The same seed
draws the same faults, at the same places of the same load:

    python -m tests.chaos worker-killed --seed 7
"""

_TABLE = """\
## What was measured

*Recovery* is how long a job took that a fault held up: from the fault to the end of the job.
From its beginning, if it hit some workers and others could go on; from its end, if nobody could.
*Longest script* is what the server's SLOWLOG says, waiting for a processor included; a dash
stands for less than {slow} ms.
"""

_COLUMNS = (
    *("fault", "jobs", "injections", "lost", "early", "twice, explained", "unexplained"),
    *("recovery p50", "p99", "longest script"),
)

_WORST = """\
## The worst that happens

- **A worker dies with its machine, or stands still.** Nobody reports it: its jobs wait for the
  end of their leases, ten seconds unless you say otherwise (two in the runs above). Then they
  run again, from the beginning. If the first run was not dead but frozen, both have run; what
  the first returns is refused, but what it did elsewhere is done. [Ids and tokens](howto/ids.md)
  say what helps.
- **A connection is half-open.** Whoever waits for a reply waits five seconds before it is given
  up and the call repeated. With a lease of ten seconds no job is taken from its worker by that.
- **The server loses what it has acknowledged**, because its log was not yet on disk, or a
  replica took over that had not had it. Jobs that were only there are gone, and nobody can tell
  but who enqueued them. Outcomes that were only there are gone too: such jobs run again. If your
  producer can repeat its latest enqueues with the same `job_id`, nothing is lost, and what was
  there is not added twice; the runs above do so.
- **The server's log is cut in the middle of a script's writes, and the server starts again
  twice.** At the first start the half transaction is ignored, but it stays in the log, and new
  writes follow it. At the second start the half is run. Valkey has mended this in [pull request
  4342](https://github.com/valkey-io/valkey/pull/4342) (August 2026); earlier releases, and
  Redis, have it. If a server says "Truncating the AOF" in its log, send it `BGREWRITEAOF` before
  it is restarted again; the runs above do so.
- **A job kills its worker, each time.** Where jobs share a process, those beside it run again for
  each crash, until it is found to be the culprit. What was beside it twice is a suspect too, and
  waits until a worker has nothing else to do, to run alone. In [processes](howto/executors.md) a
  crash takes nothing along.
- **Both who keep the time are gone, or a wake hint is lost.** A job that is due begins up to two
  seconds late.
- **The server's clock is set.** Forward: what falls due inside the jump runs. Back: what was due
  soon waits until the clock is there again. Jobs that run may run once more.
"""


def page(rows: list[Figures]) -> str:
    """The whole page, as Markdown."""
    return "\n".join([_HEAD, *_measured(rows), _WORST, *_where(rows)]) + "\n"


def write() -> None:
    """Write the page from the figures."""
    PAGE.write_text(page(figures.read(DATA)), "utf-8")


def _measured(rows: list[Figures]) -> Iterator[str]:
    yield _TABLE.format(slow=SLOW_US / 1000)
    yield f"| {' | '.join(_COLUMNS)} |"
    yield "|---|" + "--:|" * (len(_COLUMNS) - 1)
    for row in rows:
        fault = FAULTS.get(row.fault)
        title = fault.title if fault else row.fault
        cells = [
            f"{title} (`{row.fault}`)",
            *(f"{n:,}" for n in (row.jobs, row.injections, row.lost, row.early)),
            *(f"{n:,}" for n in (row.explained, row.unexplained)),
            _seconds(row.recovery_p50),
            _seconds(row.recovery_p99),
            f"{row.longest_us / 1000:.1f} ms ({row.longest})" if row.longest_us else "–",
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""
    jobs, injections = sum(row.jobs for row in rows), sum(row.injections for row in rows)
    found = sum(len(row.findings) for row in rows)
    yield from _runs(f"{jobs:,} jobs, {injections:,} injections, {found} findings.", rows)
    yield ""
    yield "What each may cost, and what else was counted:"
    yield ""
    for row in rows:
        fault = FAULTS.get(row.fault)
        told = "; ".join(f"{what}: {count:,}" for what, count in sorted(row.told.items()))
        yield f"- `{row.fault}`: {fault.allows if fault else ''}. ({told}.)"
    yield ""


def _runs(total: str, rows: list[Figures]) -> Iterator[str]:
    """What was measured where and when; a run of some faults leaves the rows of others."""
    runs: dict[str, list[Figures]] = {}
    for row in rows:
        told = "{server}, Python {python}, {cpus} processors, {date}".format(**row.about)
        runs.setdefault(told, []).append(row)
    if len(runs) == 1:
        yield f"{total} {next(iter(runs))}; seeds {_seeds(rows)}."
        return
    yield f"{total} They are of more than one run:"
    yield ""
    for told, some in runs.items():
        yield f"- {told}; seeds {_seeds(some)}: {', '.join(f'`{row.fault}`' for row in some)}."


def _seeds(rows: Iterable[Figures]) -> str:
    seeds = sorted({seed for row in rows for seed in row.seeds})
    return ", ".join(str(seed) for seed in seeds)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"


def _where(rows: Iterable[Figures]) -> Iterator[str]:
    yield "## What is looked at, and where"
    yield ""
    yield "Beside the load, tests look at each fault more closely than a load can: every reply lost"
    yield "in turn, every prefix of the log, a million jobs due at once."
    yield ""
    yield "| what can go wrong | under load | closely |"
    yield "|---|---|---|"
    for row in ROWS:
        faults = ", ".join(f"`{name}`" for name in row.faults)
        tests = ", ".join(f"`{test}`" for test in row.tests)
        yield f"| {row.what} | {faults or '–'} | {tests or '–'} |"
