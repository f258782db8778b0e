"""Which module is meant, and which files are watched."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bide.cli.dev import Sources, find_program
from bide.errors import UsageError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in (
        "app.py",
        "my-app.py",
        "notes.txt",
        "plain/tasks.py",
        "src/shop/__init__.py",
        "src/shop/mail/__init__.py",
        "src/shop/mail/tasks.py",
        ".hidden/x.py",
        "env/pyvenv.cfg",
        "env/lib/x.py",
        "node_modules/x.py",
    ):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "module", "root"),
    [
        ("app.py", "app", "."),
        ("./app.py", "app", "."),
        ("shop.tasks", "shop.tasks", "."),
        ("plain/tasks.py", "tasks", "plain"),
        ("src/shop/mail/tasks.py", "shop.mail.tasks", "src"),
        ("src/shop/mail/__init__.py", "shop.mail", "src"),
        ("src/shop/mail", "shop.mail", "src"),
    ],
)
def test_what_is_typed_leads_to_a_module(tree: Path, text: str, module: str, root: str) -> None:
    assert find_program(text, tree) == (module, str(tree / root))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("none.py", "There is no file 'none.py'"),
        ("my-app.py", "rename it, for instance to 'my_app'"),
        ("./notes.txt", "not a Python file"),
        ("src/", "is a directory"),
        ("shop tasks", "There is no file"),
    ],
)
def test_what_cannot_be_a_module_is_refused(tree: Path, text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        find_program(text, tree)


def test_own_sources_are_watched_and_no_others(tree: Path) -> None:
    sources = Sources([tree, tree / "src"])
    assert sources.changes() == set()
    for name in (".hidden/x.py", "env/lib/x.py", "node_modules/x.py", "notes.txt"):
        (tree / name).write_text("changed")
    assert sources.changes() == set()
    (tree / "src/shop/mail/tasks.py").write_text("changed")
    (tree / "src/new.py").write_text("")
    (tree / "app.py").unlink()
    os.symlink(tree, tree / "src" / "loop")
    assert {Path(path).relative_to(tree).as_posix() for path in sources.changes()} == {
        "src/shop/mail/tasks.py",
        "src/new.py",
        "app.py",
    }
    (tree / "pyproject.toml").write_text("")
    assert sources.changes() == {str(tree / "pyproject.toml")}


def test_a_file_that_is_touched_has_changed(tree: Path) -> None:
    sources = Sources([tree])
    os.utime(tree / "app.py", ns=(1, 1))
    assert sources.changes() == {str(tree / "app.py")}
