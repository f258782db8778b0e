"""The pages say what is so: generated ones are up to date, links lead somewhere, samples run."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from bide.protocol.keys import META
from bide.protocol.scripts import load, names

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]


def test_the_keys_page_is_what_the_headers_say() -> None:
    page = runpy.run_path(str(ROOT / "docs" / "make_keys.py"))["page"]()
    written = (ROOT / "docs" / "keys.md").read_text("utf-8")
    assert written == page + "\n", "run `make docs`"


def test_every_field_of_meta_that_a_script_names_is_described() -> None:
    used: set[str] = set()
    for name in names():
        text = load(name).text
        for call in re.findall(r"redis\.p?call\('H\w+', meta,([^)]*)\)", text):
            used |= set(re.findall(r"'([a-z_]+)'", call))
    assert used == set(META)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_within_the_repository_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]*)", page.read_text("utf-8")):
        assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_page_waits_to_be_filled_in(page: Path) -> None:
    assert "@@" not in page.read_text("utf-8")


def test_each_module_stands_on_a_floor() -> None:
    """The import linter holds that it stands in its layers, too."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    floors = "\n".join(line for line in text.splitlines() if line.startswith("| `"))
    package = ROOT / "src" / "bide"
    parts = {path.name for path in package.glob("[!_]*.py")}
    parts |= {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    assert [part for part in sorted(parts) if f"`{part}" not in floors] == []


def test_the_readme_has_the_length_that_people_read() -> None:
    assert 90 <= len((ROOT / "README.md").read_text("utf-8").splitlines()) <= 150


def test_the_readme_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_url: str
) -> None:
    """The module of the README is imported, used as it says, and its worker runs its function."""
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.S)
    (tmp_path / "shop.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("BIDE_URL", one_url)
    import shop  # type: ignore[import-not-found]

    from bide import State, Worker

    try:
        shop.place(1)
        shop.place(2)
        shop.paid(2)
        first, second = shop.queue.fetch("unpaid-1"), shop.queue.fetch("unpaid-2")
        assert (first.state, second.state) == (State.DELAYED, State.CANCELLED)
        first.promote()
        assert Worker([shop.queue], modules=["shop"]).run(burst=True) == 1
        assert first.refresh().state is State.COMPLETED
    finally:
        shop.queue.close()
        del sys.modules["shop"]
