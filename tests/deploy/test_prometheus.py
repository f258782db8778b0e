"""The rules and the dashboard of `deploy/`, in a real Prometheus that scrapes a worker that runs.

Grafana itself is not here: of the dashboard its queries are run, and its layout is checked.
"""

from __future__ import annotations

import json
import subprocess
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from bide import Queue
from tests.support.eventually import eventually
from tests.support.programs import prometheus
from tests.support.watched import DEPLOY, panels, watched

PROMTOOL = prometheus("promtool")
PROMETHEUS = prometheus("prometheus")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        PROMTOOL is None or PROMETHEUS is None,
        reason="there is no Prometheus; `make .venv/has-prometheus` fetches it",
    ),
]


def promtool(*args: str) -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *args], cwd=DEPLOY / "prometheus", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_configuration_and_rules() -> None:
    promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yml")


def test_rules_alert_when_they_should_and_not_otherwise() -> None:
    promtool("test", "rules", "rules_test.yml")


def test_each_alert_has_a_test() -> None:
    rules = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())
    tests = yaml.safe_load((DEPLOY / "prometheus" / "rules_test.yml").read_text())
    alerts = {
        rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule
    }
    steps = [step for each in tests["tests"] for step in each["alert_rule_test"]]
    assert {step["alertname"] for step in steps if step.get("exp_alerts")} == alerts
    assert {step["alertname"] for step in steps if not step.get("exp_alerts")} >= alerts - {
        "BideStartsLateSlowly"
    }


def test_rules_evaluate_and_panels_have_data(tmp_path: Path, one_url: str) -> None:
    assert PROMETHEUS is not None
    with (
        watched(tmp_path, one_url, PROMETHEUS) as (found, _),
        closing(Queue("orders", url=one_url)) as queue,
    ):
        queue.enqueue("shop:send", 1, delay=3600)

        def unknown() -> list[str]:
            for task in ("shop:send", "shop:bill"):
                queue.enqueue(task, 1)
            return [panel.expr for panel in panels("1m") if not found.values(panel.expr)]

        eventually(lambda: not unknown(), told=lambda: "\n".join(unknown()))

        def ill() -> list[str]:
            return [f"{rule}" for rule in found.rules() if rule["health"] != "ok"]

        eventually(lambda: not ill(), told=lambda: "\n".join(ill()))

        def firing() -> set[str]:
            return {rule["name"] for rule in found.rules() if rule.get("state") == "firing"}

        eventually(lambda: "BideJobsFailed" in firing())
        assert not firing() & {"BideMetricsMissing", "BideNoWorkers", "BideWorkersReplaced"}
        (due,) = found.values('bide_jobs_due_within{queue="orders",seconds="86400"}')
        assert due == 1


def test_the_autoscaler_counts_the_jobs_that_are_due(tmp_path: Path, one_url: str) -> None:
    assert PROMETHEUS is not None
    file = DEPLOY / "kubernetes" / "keda" / "scaledobject.yaml"
    query = yaml.safe_load(file.read_text())["spec"]["triggers"][0]["metadata"]["query"]
    with (
        closing(Queue("orders", url=one_url)) as queue,
        watched(tmp_path, one_url, PROMETHEUS) as (found, _),
    ):
        queue.enqueue_many([queue.prepare("shop:send", (n,), delay="30d") for n in range(500)])
        far = 'bide_jobs{queue="orders",state="delayed"}'
        eventually(lambda: found.values(far) == [500])
        assert found.values(query) == [0]
        queue.pause()
        for delay in (0, 0, 0, 50):
            queue.enqueue("shop:send", 1, delay=delay)
        eventually(lambda: found.values(query) == [4], told=lambda: f"{found.values(query)}")


def test_the_dashboard_has_a_place_for_each_panel() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in dashboard["panels"]:
        at = panel["gridPos"]
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        assert panel["description"]
        taken |= cells
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert {v["name"] for v in dashboard["templating"]["list"]} == {"datasource", "queue"}
