"""What waiting costs the server: the commands of an idle worker.

One worker of each library has nothing to do for some seconds, each with a server of its own, all at
the same time: what is counted does not depend on who else is there. MONITOR tells what clients send
from what scripts call. A worker has run some jobs before.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import redis

from benchmarks.lab import Lab
from benchmarks.peer import Marks, complain, open_peer
from benchmarks.report import Aim, Report, Row, Rows
from benchmarks.rounds import PEERS
from bide.embedded import Server

SETTLE_S = 2.0
MOST_COMMANDS = 0.5


def run(lab: Lab) -> list[Report]:
    """Watch all of them."""
    seconds = 8 if lab.quick else 20
    with ThreadPoolExecutor(len(PEERS)) as pool:
        attempts = {name: pool.submit(_monitor, lab.server.binary, name, seconds) for name in PEERS}
        rows: Rows = {}
        for name, attempt in attempts.items():
            try:
                worker, row = attempt.result()
                rows[worker] = row
            except RuntimeError as error:
                complain(name, error)
    aims = [
        Aim("commands a second of an idle worker", row["clients'"], at_most=MOST_COMMANDS)
        for name, row in rows.items()
        if name.startswith("bide")
    ]
    note = (
        "a second; clients': what the worker and what belongs to it send; all: scripts' calls too"
    )
    return [Report("Commands of one idle worker", rows, "worker", note, aims)]


def _monitor(binary: str, name: str, seconds: int) -> tuple[str, Row]:
    """One peer on a server of its own: its best worker, and what that sends."""
    with TemporaryDirectory() as directory, Server.start(binary=binary) as server:
        marks = Marks(Path(directory, "marks"))
        with open_peer(name, server.url, marks) as peer, peer.warm(peer.best, marks):
            time.sleep(SETTLE_S)
            heard: list[bool] = []
            client: Any = redis.Redis.from_url(server.url)
            with closing(client), client.monitor() as monitor:
                end = time.monotonic() + seconds
                while (left := end - time.monotonic()) > 0:
                    if monitor.connection.can_read(left):
                        heard.append(monitor.next_command()["client_type"] != "lua")
            return peer.best, {"clients'": sum(heard) / seconds, "all": len(heard) / seconds}
