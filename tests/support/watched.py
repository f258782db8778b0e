"""A shop that runs, and a real Prometheus that scrapes it with the files of `deploy/`."""

from __future__ import annotations

import json
import math
import re
import socket
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from tests.support.console import environment
from tests.support.eventually import eventually

DEPLOY: Final = Path(__file__).parents[2] / "deploy"

TASKS: Final = """
import bide

queue = bide.Queue("orders")


@queue.task
def send(order_id: int) -> None: ...


@queue.task(retry=bide.Retry(1, backoff=["0s"]))
def bill(order_id: int) -> None:
    raise ValueError("no such order")
"""


class Series(NamedTuple):
    """One line of a panel."""

    labels: dict[str, str]
    points: list[tuple[float, float]]
    """Seconds since 1970, and the value."""


class Prometheus:
    """A Prometheus that runs, as its HTTP API shows it."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, path: str, **query: str) -> Any:
        """The data of an answer."""
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(query)}"
        with urllib.request.urlopen(url, timeout=90) as answer:
            return json.load(answer)["data"]

    def values(self, expr: str) -> list[float]:
        """The values of an expression now, but not those that are no number."""
        result = self.ask("query", query=expr)["result"]
        values = [float(sample["value"][1]) for sample in result]
        return [value for value in values if math.isfinite(value)]

    def series(self, expr: str, start: float, end: float) -> list[Series]:
        """An expression from `start` to `end` (seconds since 1970), every 2 s."""
        span = {"start": str(start), "end": str(end), "step": "2"}
        result = self.ask("query_range", query=expr, **span)["result"]
        return [
            Series(each["metric"], [(float(at), float(value)) for at, value in each["values"]])
            for each in result
        ]

    def rules(self) -> list[dict[str, Any]]:
        """All rules, with their health and, of an alert, its state."""
        return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]


class Panel(NamedTuple):
    """A query of the dashboard."""

    title: str
    expr: str
    legend: str
    unit: str
    kind: str


def panels(window: str, queue: str = ".*") -> list[Panel]:
    """The dashboard's queries, with its variables replaced as Grafana does it."""
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    found = []
    for panel in dashboard["panels"]:
        unit = panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            expr = target["expr"].replace("$__rate_interval", window).replace("$queue", queue)
            assert "$" not in expr, expr
            legend = target["legendFormat"]
            found.append(Panel(panel["title"], expr, legend, unit, panel["type"]))
    return found


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Watched(NamedTuple):
    """A worker, `bide metrics` and a Prometheus that scrapes both."""

    prometheus: Prometheus
    worker: subprocess.Popen[bytes]


@contextmanager
def watched(home: Path, url: str, prometheus: str, tasks: str = TASKS) -> Iterator[Watched]:
    """Run all of them; `prometheus` is its program, `tasks` the module `shop`."""
    (home / "shop.py").write_text(tasks)
    bide = str(Path(sys.executable).with_name("bide"))
    with ExitStack() as stack:

        def start(name: str, *command: str) -> subprocess.Popen[bytes]:
            log = stack.enter_context((home / f"{name}.log").open("wb"))
            process = stack.enter_context(
                subprocess.Popen(command, cwd=home, env=environment(url), stdout=log, stderr=log)
            )
            stack.callback(process.terminate)
            return process

        def logged(name: str, pattern: str) -> str:
            log = home / f"{name}.log"
            found = eventually(
                lambda: re.search(pattern, log.read_text()), told=lambda: log.read_text()
            )
            return found[1] if found else ""

        worker = start("worker", bide, "worker", "shop", "--health-port", "127.0.0.1:0")
        start("metrics", bide, "metrics", "--port", "0")
        ports = {
            "bide-workers": logged("worker", r"on 127\.0\.0\.1:(\d+)"),
            "bide-queues": logged("metrics", r"answers http://127\.0\.0\.1:(\d+)"),
        }
        port = free_port()
        _configure(home, ports)
        start(
            "prometheus",
            prometheus,
            "--config.file=prometheus.json",
            "--storage.tsdb.path=data",
            f"--web.listen-address=127.0.0.1:{port}",
        )
        logged("prometheus", r"(Server is ready)")
        yield Watched(Prometheus(port), worker)


def _configure(home: Path, ports: dict[str, str]) -> None:
    """Write the configuration of `deploy/`, for other addresses and with short intervals."""
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    (rules,) = config["rule_files"]
    config["rule_files"] = [str(DEPLOY / "prometheus" / rules)]
    assert {job["job_name"] for job in config["scrape_configs"]} == {*ports}
    for job in config["scrape_configs"]:
        job.pop("dns_sd_configs", None)
        job["static_configs"] = [{"targets": [f"127.0.0.1:{ports[job['job_name']]}"]}]
    (home / "prometheus.json").write_text(json.dumps(config))
