"""The files of `deploy/` against schemas, and against each other.

No cluster and no Docker run here. Manifests are checked against Kubernetes' own schemas, KEDA's and
Compose's; the Dockerfile by a linter. What they start is run by `test_commands.py`.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from bide.cli.main import group
from bide.client import config
from bide.model.durations import to_us
from bide.worker.executors import CONCURRENCY
from bide.worker.supervisor import LIVE, LOOK_EVERY, STOP_MARGIN, STUCK
from tests.deploy.commands import (
    SYSTEMD,
    compose,
    deployments,
    ini,
    lines,
    manifests,
    supervisord,
)
from tests.support.watched import DEPLOY

MISSING = "not installed: make .venv/has-deploy"


def value(line: list[str], option: str) -> str:
    return line[line.index(option) + 1]


def scaled() -> Any:
    return yaml.safe_load((DEPLOY / "kubernetes" / "keda" / "scaledobject.yaml").read_text())


# -- schemas


@pytest.mark.slow
@pytest.mark.parametrize("version", ["1.27", "1.34"])
def test_kubernetes_accepts_the_manifests(version: str) -> None:
    validate = pytest.importorskip("kubernetes_validate", reason=MISSING)
    found = [*manifests()]
    for manifest in found:
        validate.validate(manifest, version, strict=True)
    broken = found[-1] | {"sepc": {}}
    with pytest.raises(validate.ValidationError):
        validate.validate(broken, version, strict=True)


KEDA = {
    *("scaleTargetRef", "pollingInterval", "cooldownPeriod", "initialCooldownPeriod"),
    *("idleReplicaCount", "minReplicaCount", "maxReplicaCount", "fallback", "advanced", "triggers"),
}
"""The fields of a ScaledObject, by KEDA's reference: no package carries its schema."""

KEDA_PROMETHEUS = {
    *("serverAddress", "query", "threshold", "activationThreshold", "namespace", "authModes"),
    *("customHeaders", "ignoreNullValues", "queryParameters", "unsafeSsl", "timeout"),
}


def test_keda_knows_each_field_of_the_scaled_object() -> None:
    found = scaled()
    assert (found["apiVersion"], found["kind"]) == ("keda.sh/v1alpha1", "ScaledObject")
    spec = found["spec"]
    assert {*spec} <= KEDA
    assert {*spec["fallback"]} == {"failureThreshold", "replicas"}
    assert spec["minReplicaCount"] < spec["maxReplicaCount"]
    (trigger,) = spec["triggers"]
    assert {*trigger} == {"type", "metadata"}
    assert trigger["type"] == "prometheus"
    assert {"serverAddress", "query", "threshold"} <= {*trigger["metadata"]} <= KEDA_PROMETHEUS
    assert all(isinstance(value, str) for value in trigger["metadata"].values())


@pytest.mark.slow
def test_compose_knows_each_field(tmp_path: Path) -> None:
    misspelt = compose()
    misspelt["services"]["worker"]["stop_grace_perod"] = "45s"
    for content, code in (compose(), 0), (misspelt, 1):
        (tmp_path / "compose.json").write_text(json.dumps(content))
        check = [
            sys.executable,
            "-m",
            "check_jsonschema",
            "--builtin-schema",
            "vendor.compose-spec",
        ]
        done = subprocess.run(
            [*check, str(tmp_path / "compose.json")], capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stdout


@pytest.mark.slow
def test_the_linter_accepts_the_dockerfile() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    if not hadolint.exists():
        pytest.skip(MISSING)
    done = subprocess.run(
        [str(hadolint), str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl here")
def test_kustomize_builds_all_of_it() -> None:
    done = subprocess.run(
        ["kubectl", "kustomize", str(DEPLOY / "kubernetes" / "keda")],
        capture_output=True,
        text=True,
        check=True,
    )
    built = [*yaml.safe_load_all(done.stdout)]
    names = sorted((each["kind"], each["metadata"]["name"]) for each in built)
    wanted = [*manifests(), scaled()]
    assert names == sorted((each["kind"], each["metadata"]["name"]) for each in wanted)
    assert "image: registry.example.com/shop:" in done.stdout


def test_kustomize_names_each_file() -> None:
    for folder in ("base", "keda"):
        here = DEPLOY / "kubernetes" / folder
        named = yaml.safe_load((here / "kustomization.yaml").read_text())["resources"]
        files = {path.name for path in here.glob("*.yaml")} - {"kustomization.yaml"}
        assert {*named} - {"../base"} == files


# -- command lines; `test_commands.py` runs them


@pytest.mark.parametrize(("place", "line"), [*lines()])
def test_a_command_line_is_one_of_ours(place: str, line: list[str]) -> None:
    program, name, *args = line
    assert program == "bide"
    command = group.commands[name]
    command.make_context(name, args, parent=click.Context(group))  # raises on an unknown one


# -- how long a stop may take


def stops() -> dict[str, tuple[list[str], float]]:
    """Place -> the worker's command line, and the seconds that it has until it is killed."""
    line = {place: line for place, line in lines() if line[1] == "worker"}
    service = ini(SYSTEMD[-1].read_text())["Service"]
    compose_s = to_us(compose()["services"]["worker"]["stop_grace_period"], "") / 1e6
    stop = {
        "kubernetes bide-worker": deployments()["bide-worker"]["terminationGracePeriodSeconds"],
        "compose.yaml worker": compose_s,
        "systemd bide-worker": int(service["TimeoutStopSec"]),
        "supervisord program:worker": int(supervisord()["program:worker"]["stopwaitsecs"]),
    }
    return {place: (line[place], float(seconds)) for place, seconds in stop.items()}


@pytest.mark.parametrize("place", stops())
def test_the_worker_has_longer_to_stop_than_its_jobs(place: str) -> None:
    line, seconds = stops()[place]
    assert seconds > to_us(value(line, "--grace"), "--grace") / 1e6 + STOP_MARGIN


def test_a_stuck_worker_is_replaced_before_its_unit_restarts() -> None:
    (container,) = deployments()["bide-worker"]["containers"]
    probe = container["livenessProbe"]
    after = {
        "kubernetes": (probe["failureThreshold"] - 1) * probe["periodSeconds"],
        "systemd": int(ini(SYSTEMD[-1].read_text())["Service"]["WatchdogSec"]),
    }
    assert {place: LIVE + seconds > STUCK + LOOK_EVERY for place, seconds in after.items()} == {
        "kubernetes": True,
        "systemd": True,
    }


# -- ports and names


def test_probes_services_and_policies_name_ports_that_answer() -> None:
    pods = deployments()
    lines_of = {place.partition(" ")[2]: line for place, line in lines() if "kubernetes" in place}
    ports = {}
    for name, option in ("worker", "--health-port"), ("page", "--listen"), ("metrics", "--port"):
        (container,) = pods[f"bide-{name}"]["containers"]
        (port,) = container["ports"]
        assert value(lines_of[f"bide-{name}"], option).split(":")[-1] == str(port["containerPort"])
        for probe in ("livenessProbe", "readinessProbe"):
            for check in container.get(probe, {}).values():
                assert not isinstance(check, dict) or check["port"] == port["name"]
        ports[f"bide-{name}"] = port["containerPort"]
    (worker,) = pods["bide-worker"]["containers"]
    assert worker["livenessProbe"]["httpGet"]["path"] == "/livez"
    assert worker["readinessProbe"]["httpGet"]["path"] == "/readyz"
    for found in manifests():
        if found["kind"] == "Service":
            name = found["spec"]["selector"]["app.kubernetes.io/name"]
            assert found["spec"]["ports"][0]["port"] == ports[name]
        if found["kind"] == "Deployment":
            template = found["spec"]["template"]
            assert found["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
            scraped = template["metadata"].get("annotations", {}).get("prometheus.io/port")
            assert scraped in (None, str(ports[found["metadata"]["name"]]))
    allowed = {
        port["port"]
        for found in manifests()
        if found["kind"] == "NetworkPolicy"
        for rule in found["spec"].get("ingress", ())
        for port in rule["ports"]
    }
    assert allowed == {*ports.values()}


def test_the_scaled_object_scales_the_workers() -> None:
    (trigger,) = scaled()["spec"]["triggers"]
    assert scaled()["spec"]["scaleTargetRef"]["name"] in deployments()
    line = dict(lines())["kubernetes bide-worker"]
    slots = int(value(line, "-w")) * CONCURRENCY
    assert int(trigger["metadata"]["threshold"]) == slots
    assert f'queue="{value(line, "-q")}"' in trigger["metadata"]["query"]
    (deployment,) = (
        found
        for found in manifests()
        if (found["kind"], found["metadata"]["name"]) == ("Deployment", "bide-worker")
    )
    assert "replicas" not in deployment["spec"], "the autoscaler sets it"


def test_prometheus_and_grafana_find_the_services_of_compose() -> None:
    services = compose()["services"]
    scraped = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    queues, workers = scraped["scrape_configs"]
    host, _, port = queues["static_configs"][0]["targets"][0].partition(":")
    assert value(services[host]["command"], "--port") == port
    (found,) = workers["dns_sd_configs"]
    assert found["names"] == ["worker"]
    assert value(services["worker"]["command"], "--health-port") == str(found["port"])
    provisioning = DEPLOY / "grafana" / "provisioning"
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yml").read_text())
    assert source["datasources"][0]["url"] == "http://prometheus:9090"
    assert "127.0.0.1:9090:9090" in services["prometheus"]["ports"]
    shown = yaml.safe_load((provisioning / "dashboards" / "bide.yml").read_text())
    folder = shown["providers"][0]["options"]["path"]
    mounts = [volume.split(":") for volume in services["grafana"]["volumes"]]
    assert any(mount[1].startswith(folder) for mount in mounts)
    for source_path, *_ in mounts + [v.split(":") for v in services["prometheus"]["volumes"]]:
        assert not source_path.startswith(".") or (DEPLOY / source_path).exists()


def test_variables_and_extras_exist() -> None:
    secret = next(found for found in manifests() if found["kind"] == "Secret")
    named = {*secret["stringData"]}
    for service in compose()["services"].values():
        named |= {*service.get("environment", {})}
    assert named <= {*config.VARIABLES}
    shop = tomllib.loads((DEPLOY / "shop" / "pyproject.toml").read_text())
    (needed,) = shop["project"]["dependencies"]
    ours = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())
    extras = needed.removeprefix("bide[").removesuffix("]").split(",")
    assert {*extras} <= {*ours["project"]["optional-dependencies"]}
    assert [f"{name}.py" for name in shop["tool"]["setuptools"]["py-modules"]] == ["shop.py"]
