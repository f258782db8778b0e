"""The files of a release: what is in them, and that the first pages work with nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from bide.version import VERSION
from tests.docs.pages import ROOT

pytestmark = pytest.mark.slow

WHEEL = f"bide-{VERSION}-py3-none-any.whl"
SDIST = f"bide-{VERSION}.tar.gz"
PAGES = ["README.md", *(f"docs/tutorial/{page.name}" for page in ROOT.glob("docs/tutorial/*.md"))]


def run(words: Sequence[object], cwd: Path, **env: str) -> str:
    """Run a program of another environment: nothing of this one leads it to the sources."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("BIDE_", "PYTHON", "VIRTUAL"))}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env=kept | env,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(tree: Path, to: Path) -> Path:
    run([sys.executable, "-m", "hatchling", "build", "-d", to], tree)
    return to


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist and the wheel of this tree."""
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def bare(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The programs of an environment that has the wheel, and the extras that the pages name."""
    home = tmp_path_factory.mktemp("bare")
    run([sys.executable, "-m", "venv", "--without-pip", "env"], home)
    programs = home / "env" / "bin"
    pip = [sys.executable, "-m", "pip", "--python", programs / "python", "--quiet", "install"]
    run([*pip, f"{dist / WHEEL}[embedded,web]"], home)
    return programs


def test_an_index_accepts_the_files(dist: Path) -> None:
    files = sorted(dist.iterdir())
    assert [each.name for each in files] == [WHEEL, SDIST]
    run([sys.executable, "-m", "twine", "check", "--strict", *files], dist)


def test_the_sdist_builds_the_same_files(dist: Path, tmp_path: Path) -> None:
    """From another folder, with other times and permissions of the files."""
    with tarfile.open(dist / SDIST) as sdist:
        sdist.extractall(tmp_path, filter="data")
    tree = tmp_path / SDIST.removesuffix(".tar.gz")
    for path in tree.rglob("*.py"):
        os.utime(path, (1, 1))
        path.chmod(0o600)
    again = build(tree, tmp_path / "again")
    for name in (WHEEL, SDIST):
        assert (again / name).read_bytes() == (dist / name).read_bytes(), name


def test_the_wheel_has_the_package_and_nothing_else(dist: Path) -> None:
    with zipfile.ZipFile(dist / WHEEL) as wheel:
        names = [name for name in wheel.namelist() if ".dist-info/" not in name]
    kept = {"_bide_pytest.py", "bide"}
    assert {name.partition("/")[0] for name in names} == kept
    source = [path for path in (ROOT / "src").rglob("*") if path.is_file()]
    tracked = {str(p.relative_to(ROOT / "src")) for p in source if "__pycache__" not in p.parts}
    assert {*names} == tracked


def test_the_wheel_has_no_group_of_contributors(dist: Path) -> None:
    with zipfile.ZipFile(dist / WHEEL) as wheel:
        (metadata,) = [name for name in wheel.namelist() if name.endswith("/METADATA")]
        lines = wheel.read(metadata).decode().splitlines()
    extras = {line.removeprefix("Provides-Extra: ") for line in lines if "Provides-Extra" in line}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    assert extras == project["project"]["optional-dependencies"].keys()
    assert not extras & project["dependency-groups"].keys()


@pytest.mark.parametrize("page", sorted(PAGES))
def test_a_bare_environment_runs_the_tutorial(
    page: str, bare: Path, one_url: str, tmp_path: Path
) -> None:
    code = (
        "import bide, sys; from tests.docs.run_page import main; "
        f"assert bide.__file__.startswith({str(bare.parent)!r}), bide.__file__; main({page!r})"
    )
    run(
        [bare / "python", "-c", code],
        tmp_path,
        BIDE_URL=one_url,
        PYTHONPATH=str(ROOT),
        NO_COLOR="1",
        PATH=f"{bare}:{os.environ['PATH']}",
    )
