"""The command lines in the files of `deploy/`."""

from __future__ import annotations

import configparser
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any, Final

import yaml

from tests.support.watched import DEPLOY

SYSTEMD: Final = sorted((DEPLOY / "systemd").glob("*.service"))
KUBERNETES: Final = sorted((DEPLOY / "kubernetes" / "base").glob("*.yaml"))


def compose() -> dict[str, Any]:
    """The compose file, with its merge keys merged."""
    found: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return found


def manifests() -> Iterator[dict[str, Any]]:
    """All objects of Kubernetes' base."""
    for file in KUBERNETES:
        for found in yaml.safe_load_all(file.read_text()):
            if found["kind"] != "Kustomization":
                yield found


def deployments() -> dict[str, dict[str, Any]]:
    """Name -> the specification of the pods of a Deployment."""
    return {
        found["metadata"]["name"]: found["spec"]["template"]["spec"]
        for found in manifests()
        if found["kind"] == "Deployment"
    }


def ini(text: str) -> configparser.ConfigParser:
    """A file of supervisord or systemd."""
    found = configparser.ConfigParser(interpolation=None, inline_comment_prefixes=(";",))
    found.optionxform = str  # type: ignore[assignment, method-assign]
    found.read_string(text)
    return found


def supervisord() -> configparser.ConfigParser:
    """The configuration of supervisord."""
    return ini((DEPLOY / "supervisord.conf").read_text())


def lines() -> Iterator[tuple[str, list[str]]]:
    """Each file, or place in it, and a command line of `bide` there."""
    docker = (DEPLOY / "Dockerfile").read_text()
    yield "Dockerfile", json.loads(re.findall(r"^CMD (.*)$", docker, re.MULTILINE)[-1])
    for name, service in compose()["services"].items():
        if service.get("image") == "shop":
            yield f"compose.yaml {name}", service["command"]
    for name, pod in deployments().items():
        (container,) = pod["containers"]
        yield f"kubernetes {name}", container["command"] + container["args"]
    for file in SYSTEMD:
        program, *rest = shlex.split(ini(file.read_text())["Service"]["ExecStart"])
        assert program.endswith("/bin/bide")
        yield f"systemd {file.stem}", ["bide", *rest]
    for name, section in supervisord().items():
        if "command" in section:
            yield f"supervisord {name}", shlex.split(section["command"])
    for line in (DEPLOY / "Procfile").read_text().splitlines():
        name, _, command = line.partition(": ")
        yield f"Procfile {name}", shlex.split(command)


def on_free_ports(text: str) -> str:
    """Replace the ports of a command line by 0, and all interfaces by the loopback one."""
    text = re.sub(r"(--health-port|--listen) (?:[\d.]+:)?\d+", r"\1 127.0.0.1:0", text)
    text = re.sub(r"--port \d+", "--port 0", text)
    return text.replace("--host 0.0.0.0", "--host 127.0.0.1")
