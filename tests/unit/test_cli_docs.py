"""docs/cli.md names every command, option, variable, setting and exit code that there is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from bide.cli.jobs import enqueue
from bide.cli.main import (
    FAILED,
    INTERRUPTED,
    NOT_FOUND,
    OK,
    PIPE_CLOSED,
    USAGE,
    group,
)
from bide.cli.options import read_address
from bide.client import config
from bide.model.options import TaskOptions

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "cli.md").read_text("utf-8")
SHARED = {"--url", "--prefix", "--json", "--help", "--version"}
"""Said once, for all commands."""


def commands(group: click.Group, path: str = "bide") -> Iterator[tuple[str, click.Command]]:
    for name, command in group.commands.items():
        if isinstance(command, click.Group):
            yield from commands(command, f"{path} {name}")
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield f"{path} {name}", command


def sections() -> dict[str, str]:
    """Title -> text of each command's section."""
    parts = re.split(r"^#{2,3} (.*)$", PAGE, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


COMMANDS = dict(commands(group))


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_is_described_with_its_options(path: str) -> None:
    text = sections()[path]
    for parameter in COMMANDS[path].params:
        if isinstance(parameter, click.Option):
            long = max(parameter.opts, key=len)
            known = long in text or (long in SHARED and long in PAGE)
            short = re.search(rf"(^|[^-\w]){re.escape(min(parameter.opts, key=len))}\b", PAGE)
            assert (known and short) or long == "--help", f"{path} {long}"


def test_no_command_is_described_that_there_is_not() -> None:
    told = {name for title in sections() for name in re.findall(r"bide [a-z-]+(?: [a-z]+)?", title)}
    assert told <= set(COMMANDS)


def test_every_variable_and_setting_is_described() -> None:
    for name in config.VARIABLES:
        assert f"| `{name}` |" in PAGE
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.S)
    keys = set(re.findall(r"^([\w-]+) = ", toml, flags=re.M))
    assert keys == {
        *config.keys_of(config.Settings),
        *config.keys_of(config.WorkerSettings),
    } - {"worker"}


def test_the_settings_shown_are_ones_that_can_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (toml,) = re.findall(r"```toml\n(.*?)```", PAGE, flags=re.S)
    (tmp_path / "pyproject.toml").write_text(toml)
    monkeypatch.chdir(tmp_path)
    for name in config.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    told = config.settings()
    assert told.prefix == "shop"
    assert told.worker.modules == ("shop.tasks",)


def test_every_exit_code_is_described() -> None:
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE, flags=re.M)}
    assert told == {OK, FAILED, USAGE, NOT_FOUND, INTERRUPTED, PIPE_CLOSED}


@pytest.mark.parametrize("path", COMMANDS)
def test_every_short_help_fits_a_terminal(path: str) -> None:
    assert not COMMANDS[path].get_short_help_str(62).endswith("...")


def test_enqueue_says_which_options_are_the_tasks_own_where_they_are_not_given() -> None:
    for option in enqueue.params:
        is_tasks = option.name in {*TaskOptions.__annotations__, "queue", "key"}
        told = getattr(option, "help", None) or ""
        assert ("[default: the task's, otherwise " in told) is is_tasks, option.name
        assert is_tasks or "[default" not in told or option.name == "description"


def test_where_the_health_port_is_open_is_said_where_somebody_may_look() -> None:
    host, port = read_address("8080")
    (option,) = (o for o in COMMANDS["bide worker"].params if o.name == "health_port")
    assert isinstance(option, click.Option)
    pages = [(DOCS / "howto" / name).read_text("utf-8") for name in ("production.md", "metrics.md")]
    for text in (option.help or "", PAGE, *pages):
        assert re.search(rf"all\s+IPv4\s+interfaces\s+\(`?{re.escape(host)}`?\)", text)
        assert re.search(rf"127\.0\.0\.1:({port}|PORT)", text)
