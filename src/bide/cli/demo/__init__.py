"""`bide demo`: processes orders on a server and workers of its own, and checks every order.

Orders come from a CSV file. For each order, the desk enqueues a notification and a cancellation at
the payment deadline. A payment in time cancels the cancellation. One of the workers is killed
meanwhile. At the end, a checker reads the journal that the jobs wrote, and checks that no job was
early, lost, or run twice without a cause.

    play      the jobs, the desk, the worker processes, the progress
    books     the journal and the checker, also alone: python -m bide.cli.demo.books ORDERS.csv
    JOURNAL
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from types import FrameType

import click

from bide.cli.options import option


@click.command()
@click.argument("orders_csv", metavar="[ORDERS.csv]", required=False, type=Path)
@option("--orders", "", "Number of orders; the file is cut or repeated.", type=click.IntRange(1))
@option(
    "--speed",
    "",
    "Seconds of the file that pass in one second.",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
)
@option("--keep", "DIR", "Keep the journal and the workers' logs.", type=Path)
def demo(orders_csv: Path | None, orders: int | None, speed: float, keep: Path | None) -> None:
    """Run 300 orders, kill a worker, and check every order.

    The demo starts a server and three workers of its own, kills one worker, and leaves nothing
    behind. ORDERS.csv has the columns order,placed,deadline,paid_after (seconds); without it, the
    demo uses a sample. The exit code is 0 only if no job was lost, early, or run twice without a
    cause.
    """
    from bide.cli.demo.books import report
    from bide.cli.demo.play import play

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _stop)
    try:
        books = play(orders_csv, orders, speed, keep)
        report(books)
    except SystemExit:  # a signal asked the demo to stop
        click.echo("Stopped; the server and all workers have ended.", err=True)
        raise
    sys.exit(0 if books.balanced else 1)


def _stop(number: int, frame: FrameType | None) -> None:
    for other in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, signal.SIG_IGN)  # no signal may interrupt the cleanup
    sys.exit(128 + number)
