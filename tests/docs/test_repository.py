"""The files around the code: workflows, templates, policies. Their hosts are not there to try them.

So they are checked against the schemas of their formats, and what they name must exist.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from bide.version import VERSION
from tests.docs.pages import ROOT

WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
SCHEMAS = {
    "github-workflows": WORKFLOWS,
    "dependabot": [ROOT / ".github/dependabot.yml"],
    "github-issue-config": [ROOT / ".github/ISSUE_TEMPLATE/config.yml"],
    "github-issue-forms": [ROOT / f".github/ISSUE_TEMPLATE/{n}.yml" for n in ("bug", "feature")],
    "readthedocs": [ROOT / ".readthedocs.yaml"],
}
POLICIES = ["AGENTS.md", "CODE_OF_CONDUCT.md", "SECURITY.md"]


def _yaml(path: Path) -> Any:
    return yaml.safe_load(path.read_text("utf-8"))


def _steps(workflow: Path) -> list[dict[str, Any]]:
    return [step for job in _yaml(workflow)["jobs"].values() for step in job["steps"]]


def _project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


@pytest.mark.parametrize("schema", SCHEMAS)
def test_each_file_is_of_its_format(schema: str) -> None:
    assert SCHEMAS[schema]
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
        + [str(path) for path in SCHEMAS[schema]],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_call_targets_that_there_are(workflow: Path) -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    lines = [line for step in _steps(workflow) for line in step.get("run", "").splitlines()]
    called = [word for line in lines for word in re.findall(r"\bmake ([\w-]+)", line)]
    assert called
    assert {*called} <= {*targets}


def test_workflows_run_what_ci_runs() -> None:
    """`.ci/run` calls `check` and `test-all`, which is `test` and `slow`."""
    runs = [step.get("run") for step in _steps(ROOT / ".github/workflows/ci.yml")]
    assert {"make check", "make test", "make slow"} <= {*runs}
    assert (ROOT / ".ci/run").read_text("utf-8").endswith("make check\nmake test-all\n")


def test_every_supported_python_is_tested() -> None:
    matrix = _yaml(ROOT / ".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    classifiers = " ".join(_project()["project"]["classifiers"])
    assert matrix["python"] == re.findall(r"Python :: (3\.\d+)", classifiers)


def test_only_the_step_that_publishes_gets_a_token() -> None:
    for workflow in WORKFLOWS:
        told = _yaml(workflow)
        assert told["permissions"] == {"contents": "read"}
        more = {
            name: job["permissions"] for name, job in told["jobs"].items() if job.get("permissions")
        }
        assert more == ({"publish": {"id-token": "write"}} if workflow.stem == "release" else {})


def test_hooks_call_tools_of_the_environment() -> None:
    for repo in _yaml(ROOT / ".pre-commit-config.yaml")["repos"]:
        for hook in repo["hooks"]:
            tool, *arguments = hook["entry"].split()
            assert tool in (".venv/bin/ruff", ".venv/bin/python")
            assert tool.endswith("ruff") or (ROOT / arguments[0]).is_file()


@pytest.mark.parametrize("name", POLICIES)
def test_links_of_the_policies_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text("utf-8")
    links = re.findall(r"\]\((?!https:)([^)#]+)", text)
    assert links
    assert all((ROOT / link).is_file() for link in links)


def test_the_notes_for_agents_are_short() -> None:
    assert len((ROOT / "AGENTS.md").read_text("utf-8").splitlines()) <= 20


def test_the_changelog_begins_with_this_version() -> None:
    newest = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)[0]
    assert newest == "Unreleased" or re.fullmatch(
        rf"{re.escape(VERSION)} - \d{{4}}-\d\d-\d\d", newest
    )


def test_no_address_of_the_project_is_invented() -> None:
    """Where it will live is not known: `pyproject.toml` says what waits for that."""
    project = _project()
    assert "urls" not in project["project"]
    assert not any("email" in author for author in project["project"]["authors"])
