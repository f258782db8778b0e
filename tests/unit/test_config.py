"""What is asked for comes from the first that has it: override, argument, environment, file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bide.client import config
from bide.client.config import WorkerSettings, override, settings
from bide.client.url import DEFAULT_URL, resolve_prefix, resolve_url
from bide.errors import UsageError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in config.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(directory: Path, text: str) -> Path:
    file = directory / "pyproject.toml"
    file.write_text(text)
    return file


def complaint() -> str:
    with pytest.raises(UsageError) as caught:
        settings()
    assert caught.value.__context__ is None or caught.value.__suppress_context__
    return str(caught.value)


def test_nothing_says_anything() -> None:
    assert settings().worker == WorkerSettings()
    assert resolve_url(None) == DEFAULT_URL
    assert resolve_prefix(None) == "bide"


def test_the_file_then_the_environment_then_the_argument_then_the_override(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home, '[tool.bide]\nurl = "redis://file"\nprefix = "file"\nlog-format = "kv"')
    assert (resolve_url(None), resolve_prefix(None)) == ("redis://file", "file")
    assert settings().log_format == "kv"
    monkeypatch.setenv("BIDE_URL", "redis://variable")
    monkeypatch.setenv("BIDE_PREFIX", "variable")
    monkeypatch.setenv("BIDE_LOG_FORMAT", "json")
    assert (resolve_url(None), resolve_prefix(None)) == ("redis://variable", "variable")
    assert settings().log_format == "json"
    assert (resolve_url("redis://given"), resolve_prefix("given")) == ("redis://given", "given")
    with override(url="redis://test", prefix="test", clock="testing"):
        assert (resolve_url("redis://given"), resolve_prefix("given")) == ("redis://test", "test")
        assert config.overridden().clock == "testing"
    assert config.overridden().clock is None


def test_empty_variables_and_arguments_say_nothing(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home, '[tool.bide]\nprefix = "file"')
    monkeypatch.setenv("BIDE_PREFIX", "")
    assert resolve_prefix("") == "file"


def test_everything_that_a_file_may_say(home: Path) -> None:
    file = write(
        home,
        """
        [tool.other]
        url = 3
        [tool.bide]
        url = "unix:///run/v.sock"
        prefix = "shop"
        log-format = "json"
        [tool.bide.worker]
        modules = ["shop.tasks", "shop.mail"]
        queues = "mail"
        strategy = "fair"
        concurrency = 7
        executor = "process"
        workers = 3
        max-jobs = 1000
        max-rss = "1.5GB"
        max-idle = 60
        lease = "1m"
        grace = 2.5
        """,
    )
    assert settings() == config.Settings(
        url="unix:///run/v.sock",
        prefix="shop",
        log_format="json",
        worker=WorkerSettings(
            modules=("shop.tasks", "shop.mail"),
            queues=("mail",),
            strategy="fair",
            concurrency=7,
            executor="process",
            workers=3,
            max_jobs=1000,
            max_rss=1_500_000_000,
            max_idle=60,
            lease="1m",
            grace=2.5,
        ),
        file=file,
    )


def test_a_profile_has_the_options_of_all_workers_that_it_leaves_out(home: Path) -> None:
    write(
        home,
        """
        [tool.bide.worker]
        modules = ["shop"]
        concurrency = 7
        [tool.bide.workers.mail]
        queues = "mail"
        concurrency = 50
        [tool.bide.workers.reports]
        executor = "process"
        """,
    )
    assert settings().workers == {
        "mail": WorkerSettings(modules=("shop",), queues=("mail",), concurrency=50),
        "reports": WorkerSettings(modules=("shop",), executor="process", concurrency=7),
    }
    assert settings().worker == WorkerSettings(modules=("shop",), concurrency=7)


def test_the_nearest_file_is_read_and_no_other(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(home, '[tool.bide]\nprefix = "outer"')
    inner = home / "src" / "shop"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert resolve_prefix(None) == "outer"
    other = home / "other" / "deep"
    other.mkdir(parents=True)
    write(home / "other", "")
    monkeypatch.chdir(other)
    assert resolve_prefix(None) == "bide"


def test_a_file_is_read_once(home: Path) -> None:
    file = write(home, '[tool.bide]\nprefix = "first"')
    assert resolve_prefix(None) == "first"
    file.write_text('[tool.bide]\nprefix = "second"')
    assert resolve_prefix(None) == "first"


def test_what_comes_before_the_file_does_not_read_it(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(home, "not toml")
    monkeypatch.setenv("BIDE_PREFIX", "variable")
    assert resolve_url("redis://given") == "redis://given"
    assert resolve_prefix(None) == "variable"


def test_a_working_directory_that_is_gone_has_no_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = home / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert resolve_prefix(None) == "bide"


def test_a_file_that_another_user_may_have_planted_is_not_read(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In /tmp, anyone could make us talk to a server of theirs."""
    below = home / "work"
    below.mkdir()
    write(home, '[tool.bide]\nprefix = "theirs"')
    home.chmod(0o777)
    monkeypatch.chdir(below)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: 4242)
        os.chown(home / "pyproject.toml", 4243, -1) if os.getuid() == 0 else None
        assert resolve_prefix(None) == "bide"
    home.chmod(0o755)
    monkeypatch.chdir(home)
    assert resolve_prefix(None) == "theirs"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tool.bide]\nurll = 'x'", "[tool.bide] of {file} sets 'urll', which is none of url,"),
        ("[tool.bide.worker]\nmodule = 'x'", "[tool.bide.worker] of {file} sets 'module', which"),
        ("[tool]\nbide = 3", "[tool.bide] of {file} is not a table"),
        ("[tool.bide]\nworker = 3", "[tool.bide.worker] of {file} is not a table"),
        ("[tool.bide]\nurl = 3", "url in [tool.bide] of {file} must be text"),
        ("[tool.bide]\nprefix = ''", "prefix in [tool.bide] of {file} must be text that is not"),
        ("[tool.bide]\nlog-format = 'xml'", "log-format in [tool.bide] of {file} must be one of"),
        ("[tool.bide.worker]\nqueues = [1]", "queues in [tool.bide.worker] of {file} must be a li"),
        ("[tool.bide.worker]\nmodules = ['']", "modules in [tool.bide.worker] of {file} must be a"),
        (
            "[tool.bide.worker]\nstrategy = 5",
            'strategy in [tool.bide.worker] of {file} must be "strict"',
        ),
        ("[tool.bide.worker]\nstrategy = {}", "such as {{mail = 6, low = 1}}"),
        (
            "[tool.bide.worker]\nstrategy = {high = 0}",
            "high of strategy in [tool.bide.worker] of {file}",
        ),
        ("[tool.bide.worker]\nstrategy = {high = 0.5}", "whole number, 1 or more, not 0.5"),
        ("[tool.bide.worker]\nconcurrency = 0", "concurrency in [tool.bide.worker] of {file} must"),
        ("[tool.bide.worker]\nconcurrency = true", "1 or more, not True"),
        ("[tool.bide.worker]\nlease = 'soon'", "[tool.bide.worker] of {file}: lease='soon' is not"),
        ("[tool.bide.worker]\ngrace = -1", "grace must not be negative"),
        ("[tool.bide]\nworkers = 3", "workers in [tool.bide] of {file} must be tables"),
        ("[tool.bide.workers]\nqueues = ['a']", "such as [tool.bide.workers.mail]"),
        ("[tool.bide.workers.'a b']\nworkers = 1", "has a worker 'a b'; its name must have"),
        (
            "[tool.bide.workers.a]\nqueue = 'a'",
            "[tool.bide.workers.a] of {file} sets 'queue', which is none of modules, queues,",
        ),
        ("[tool.bide.workers.a]\nlease = 'soon'", "[tool.bide.workers.a] of {file}: lease="),
        ("[tool.bide.workers.a]\nworkers = 0", "workers in [tool.bide.workers.a] of {file} must"),
        ("a = 1\nb = = 2", "{file} is not TOML: Invalid value (at line 2, column 5)."),
        ("a = 1\nb = 'x", "{file} is not TOML: "),
    ],
)
def test_what_a_file_cannot_mean_is_said_with_its_place(home: Path, text: str, says: str) -> None:
    file = write(home, text)
    assert says.format(file=file) in complaint()


def test_a_file_that_is_not_utf_8(home: Path) -> None:
    (home / "pyproject.toml").write_bytes(b"a = '\xff'")
    assert "is not TOML" in complaint()


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(home: Path) -> None:
    write(home, "").chmod(0)
    assert "Permission denied" in complaint()


def test_a_variable_that_cannot_be_meant_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIDE_LOG_FORMAT", "xml")
    assert complaint() == "$BIDE_LOG_FORMAT must be one of text, kv, json, not 'xml'."


def test_a_url_that_is_refused_is_said_to_be_whose(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write(home, '[tool.bide]\nurl = "http://user:secret@host"')
    with pytest.raises(UsageError, match=r"user:\*\*\*@host' \(from .*pyproject") as caught:
        resolve_url(None)
    assert str(file) in str(caught.value)
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("BIDE_URL", "http://host")
    with pytest.raises(UsageError, match=r"\(from \$BIDE_URL\)"):
        resolve_url(None)


# -- overrides


def test_overrides_nest_and_each_leaves_what_it_does_not_name() -> None:
    with override(url="redis://outer", prefix="outer"):
        with override(prefix="inner"):
            assert (resolve_url("redis://x"), resolve_prefix("x")) == ("redis://outer", "inner")
        assert resolve_prefix("x") == "outer"
    assert resolve_prefix("x") == "x"


def test_the_generation_is_another_at_each_change() -> None:
    seen = [config.generation]
    with override(prefix="a"):
        seen.append(config.generation)
        with override(prefix="b"):
            seen.append(config.generation)
        seen.append(config.generation)
    seen.append(config.generation)
    assert len(set(seen)) == 5


def test_overrides_that_end_in_another_order_than_they_began() -> None:
    first, second = override(prefix="first"), override(prefix="second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert resolve_prefix(None) == "second"
    second.__exit__(None, None, None)
    assert config.overridden() == config.Override()


def test_an_override_ends_with_an_error_too() -> None:
    with pytest.raises(RuntimeError), override(prefix="x"):
        raise RuntimeError
    assert config.overridden() == config.Override()
