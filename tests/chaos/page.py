"""Writes `docs/reliability.md` from the figures in `docs/reliability.json`, and what they mean.

`make chaos` measures, and writes both; a test holds the page to be what this makes of the figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.chaos import figures
from tests.chaos.catalogue import FAULTS, ROWS
from tests.chaos.figures import Figures
from tests.chaos.server_setup import SLOW_US

DOCS = Path(__file__).parents[2] / "docs"
DATA = DOCS / "reliability.json"
PAGE = DOCS / "reliability.md"

_HEAD = """\
# Reliability

This page shows measurements of bide under faults. `make chaos` starts servers, worker processes and
a producer, and breaks one thing after another under load. Then it compares three records:

- the answers that the producer received
- the ledger into which each job wrote when it started and when it ended
- the data on the server

The figures below are from the latest run of each fault, also [as JSON](reliability.json).
`make test` runs the same faults with less load.

## Checks

1. **Nothing is lost.** Each job whose enqueue returned is in exactly one state.
2. **One outcome.** Each attempt has at most one outcome: the outcome of the run that held the job
   last. The server's totals, its records and the results agree.
3. **Not twice without a cause.** An attempt runs once, and at most once more for each fault that
   hit its worker during the run. Such a run is *explained*. A fault that can only cost time, such
   as a lost reply, explains nothing. The only other cause is a busy machine, see below.
4. **Never early.** No run starts before it is due, by the server's clock.
5. **In order.** A worker that runs one job at a time runs due jobs by due time, then by id.
6. **Tokens increase.** No two claims of a job have the same token.
7. **The data is consistent.** Sets and hashes on the server name the same jobs, and every key is in
   [the list of keys](keys.md).
8. **The queue drains.** After the last fault all jobs end within a lease, their back-off and ten
   seconds. Time for which a worker and its server waited for a processor does not count.
9. **Nothing is left behind.** No process, thread or descriptor outlives its worker.
10. **Groups, limits, dependencies, batches and schedules hold.**
    - Jobs of a group run one at a time and in order.
    - No more jobs of a queue run at once, or start in a second, than its limits allow.
    - A job with dependencies runs after its parents.
    - Each batched item is in one finished job.
    - Each time of a schedule fires once.
11. **Orders, jobs and effects balance.** With the [outbox](howto/outbox.md), each order that was
    committed has its jobs, and each job has its order. Each effect in the database happened once,
    and no row is left in the outbox.

A busy machine can also cause a second run. The system counts how long each thread waited for a
processor. A worker may have lost its lease if it and its server waited for half a lease within one
lease. An eighth is enough if the worker's log has a failed renewal at that time. Such runs are also
counted apart.

A seed, which is printed, decides when each fault is injected. The same seed injects the same faults
at the same places of the same load:

    python -m tests.chaos worker-killed --seed 7
"""

_TABLE = """\
## Measurements

*Recovery* is the time from the fault to the end of a job that the fault delayed. If some workers
could continue, it counts from the start of the fault, otherwise from the end of the fault. *Longest
script* is from the server's SLOWLOG. It includes waiting for a processor, and the time for which
the server was frozen during the script. A dash means less than {slow} ms.
"""

_COLUMNS = (
    *("fault", "jobs", "injections", "lost", "early", "twice, explained", "unexplained"),
    *("recovery p50", "p99", "longest script"),
)

_WORST = """\
## Worst cases

- **A worker dies with its machine, or is frozen.** No program reports it. Its jobs wait for the
  end of their leases: ten seconds by default, two in the runs above. Then they run again from the
  start. If the first run was only frozen, both have run: the server refuses its outcome, but its
  effects elsewhere remain. [Ids and tokens](howto/ids.md) help.
- **A connection is half-open.** A call waits five seconds for its reply, and is then repeated. With
  a lease of ten seconds no worker loses a job by that.
- **The server loses acknowledged writes.** Its log was not on disk yet, or a replica took over
  that had not received them.
    - Lost jobs are known only to their producer. If your producer can repeat its latest enqueues
      with the same `job_id`, nothing is lost, and no job is added twice. The runs above do so.
    - If an outcome is lost, its job runs again.
- **The server's log is cut inside a script's writes, and the server starts again twice.** At the
  first start the server ignores the half transaction, but leaves it in the log, and new writes
  follow. At the second start it applies the half transaction. Valkey has fixed this in [pull
  request 4342](https://github.com/valkey-io/valkey/pull/4342) (August 2026). Earlier releases, and
  Redis, have the bug. If a server logs "Truncating the AOF", send it `BGREWRITEAOF` before it
  restarts again; the runs above do so.
- **A job kills its worker each time.** If jobs share a process, each crash makes the other jobs run
  again, until bide has found the cause. A job that was twice in a crashed process is a suspect,
  too: it runs alone when a worker has no other jobs. In [processes](howto/executors.md) a crash
  affects no other job.
- **The timekeeper and the backup die, or a wake-up message is lost.** A due job starts up to two
  seconds late.
- **The server's clock is changed.** If it jumps forward, the jobs within the jump become due. If it
  jumps back, jobs that were due soon wait until the clock has reached their time again. Running
  jobs may run a second time.
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
    yield "The allowed cost of each fault, and other counts:"
    yield ""
    yield "| fault | allowed cost | counts |"
    yield "|---|---|---|"
    for row in rows:
        fault = FAULTS.get(row.fault)
        counts = ", ".join(f"{what}: {count:,}" for what, count in sorted(row.told.items()))
        yield f"| `{row.fault}` | {fault.allows if fault else '–'} | {counts or '–'} |"
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
    yield f"{total} The figures are from several runs:"
    yield ""
    for told, some in runs.items():
        names = ", ".join(f"`{row.fault}`" for row in some)
        faults = names if 2 * len(some) <= len(rows) else "all other faults"
        yield f"- {told}; seeds {_seeds(some)}: {faults}."


def _seeds(rows: Iterable[Figures]) -> str:
    seeds = sorted({seed for row in rows for seed in row.seeds})
    return ", ".join(str(seed) for seed in seeds)


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f} s"


def _where(rows: Iterable[Figures]) -> Iterator[str]:
    yield "## Faults and their tests"
    yield ""
    yield "In addition to the load, tests cover each fault in detail. Each reply is lost in turn,"
    yield "each prefix of the log is restored, and a million jobs are due at once."
    yield ""
    yield "| fault | under load | in detail |"
    yield "|---|---|---|"
    for row in ROWS:
        faults = ", ".join(f"`{name}`" for name in row.faults)
        tests = ", ".join(f"`{test}`" for test in row.tests)
        yield f"| {row.what} | {faults or '–'} | {tests or '–'} |"
