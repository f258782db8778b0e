"""How the command line fails: one sentence, one exit code, no traceback, whatever happens."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import bide as package
from bide import Queue
from bide.cli.main import group
from tests.support.console import at_terminal, bide, environment, error_of, said

ESCAPES = "a\x1b[2Jb\rc\x9b1m\u202e"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (["inof"], 2, "no command 'inof'; did you mean 'info'? See `bide --help`."),
        (["zzz"], 2, "no command 'zzz'; there are demo, dev, worker, "),
        (["pause"], 2, "did you mean `queues pause` or `cron pause` or `workers pause`?"),
        (["enqueue", "shop:greet", "-5"], 2, "begins with a minus stands behind --."),
        (["web", "--listen", "127.0.0.1"], 2, "--listen '127.0.0.1' is not a port"),
        (["queues", "puase"], 2, "did you mean 'pause' or 'purge'? See `bide queues --help`."),
        (["workers", "ls"], 2, "There is no command 'ls'; `bide workers` lists them."),
        (["enqueue", "shop:greet", "--delay", "5m"], 2, "Did you mean '--in'?"),
        (["--jsn"], 2, "--jsn"),
        (["info", "--jsn"], 2, "--json"),
        (["info", "-u"], 2, "requires an argument"),
        (["enqueue"], 2, "TASK"),
        (["completion", "tcsh"], 2, "'bash', 'zsh', 'fish'"),
        (["worker"], 2, "No MODULE is given"),
        (["worker", "shop", "--log-format", "xml"], 2, "'text', 'kv', 'json'"),
        (["health", "--max-lateness", "soon"], 2, "--max-lateness='soon' is not a duration"),
        (["queues", "pause"], 2, "QUEUE"),
        (["queues", "pause", "nowhere"], 3, "There is no queue 'nowhere' on"),
        (["queues", "ls", "-q", "mial"], 3, "did you mean 'mail'?"),
        (["info", "-q", "mial"], 3, "did you mean 'mail'?"),
        (["queues", "pause", "{x}"], 2, "queue name"),
        (["queues", "purge", "mail"], 2, "There is no terminal to ask at; add --yes"),
        (["info", "--prefix", "a b"], 2, "prefix"),
        (["info", "-u", "redis+sentinel://host"], 2, "lacks the name of the master"),
        (["info", "-u", "redis+cluster://127.0.0.1:1"], 1, "redis+cluster://127.0.0.1:1"),
        (["info", "-u", "redis+sentinel://:secret@127.0.0.1:1/shop"], 1, "127.0.0.1:1/shop"),
        (["health", "-u", "redis://u:secret@127.0.0.1:1"], 1, "redis://u:***@127.0.0.1:1"),
        (["workers", "-u", "redis://u:secret@127.0.0.1:1"], 1, "redis://u:***@127.0.0.1:1"),
    ],
)
def test_each_misuse_has_one_sentence(
    home: Path, one_url: str, args: list[str], code: int, says: str
) -> None:
    queue = Queue("mail", url=one_url)
    queue.enqueue("shop:greet", delay="1h")
    message = error_of(bide(home, *args, url=one_url), code)
    assert says in message
    assert "secret" not in message
    assert queue.counts().delayed == 1
    queue.close()


def test_a_setting_in_the_file_that_cannot_be_meant(home: Path, one_url: str) -> None:
    (home / "pyproject.toml").write_text("[tool.bide]\nurll = 3")
    assert "sets 'urll'" in error_of(bide(home, "info"), 2)
    (home / "pyproject.toml").write_text("[tool.bide]\nurl = 'http://u:secret@host'")
    message = error_of(bide(home, "info"), 2)
    assert "pyproject.toml" in message
    assert "secret" not in message


@pytest.mark.slow
def test_an_error_prints_no_control_characters(home: Path, one_url: str) -> None:
    message = error_of(bide(home, "enqueue", f"shop:{ESCAPES}", url=one_url), 2)
    assert message.isprintable()
    message = error_of(bide(home, f"x{ESCAPES}", url=one_url), 2)
    assert message.isprintable()


def test_the_help_of_enqueue_names_the_defaults_of_a_task() -> None:
    options = {each.name: each for each in group.commands["enqueue"].params}
    helps = {name: getattr(each, "help", None) or "" for name, each in options.items()}
    own = package.TaskOptions.__annotations__.keys() & options.keys() | {"queue"}
    assert len(own) > 8
    for name, text in helps.items():
        is_named = re.search(r"\[default: the task's, otherwise .+\]$", text) is not None
        assert is_named == (name in own), name


@pytest.mark.slow
def test_help_and_version_are_no_errors_and_show_no_setting(home: Path) -> None:
    for args in ([], ["--help"], ["queues"], ["queues", "ls", "-h"], ["worker", "--help"]):
        done = bide(home, *args, url="redis://u:secret@host")
        assert "Usage: bide" in said(done)
        assert "secret" not in done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("args", [["info"], ["top", "--once"], ["--help"], ["--version"]])
def test_a_reader_that_leaves_early_is_no_error(home: Path, one_url: str, args: list[str]) -> None:
    with contextlib.closing(Queue(url=one_url)) as queue:
        queue.enqueue("shop:greet")
    program = subprocess.Popen(
        [sys.executable, "-m", "bide", *args],
        cwd=home,
        env=environment(one_url),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    program.stdout.close()
    assert program.stderr is not None
    assert program.stderr.read() == ""
    program.stderr.close()
    assert program.wait(60) == 128 + signal.SIGPIPE


def test_ctrl_c_at_a_question_ends_with_130(home: Path, one_url: str) -> None:
    queue = Queue("mail", url=one_url)
    queue.enqueue("shop:greet", delay="1h")
    shown = at_terminal(home, "queues", "purge", "mail", url=one_url, types={"[y/N]": "\x03"})
    assert shown.code == 130
    assert "Stopped." in shown.text
    assert "Traceback" not in shown.text
    assert queue.counts().delayed == 1
    queue.close()


def test_options_of_the_server_stand_before_the_command_too(home: Path, one_url: str) -> None:
    def queues(*args: str) -> list[str]:
        done = bide(home, *args, "--json", url="redis://127.0.0.1:1")
        return list(json.loads(said(done))["queues"])

    for prefix in ("one", "two"):
        queue = Queue(prefix, url=one_url, prefix=prefix)
        queue.enqueue("shop:greet", delay="1h")
        queue.close()
    assert queues("-u", one_url, "--prefix", "one", "queues", "ls") == ["one"]
    assert queues("-u", one_url, "queues", "--prefix", "one", "ls") == ["one"]
    assert queues("--prefix", "two", "queues", "ls", "-u", one_url, "--prefix", "one") == ["one"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["-u", "redis://host", "dev", "shop.py"], "`bide dev` has no --url; leave it out."),
        (["--prefix", "one", "dev", "shop.py"], "`bide dev` has no --prefix; leave it out."),
        (["-u", "redis://host", "outbox", "ls", "shop:outbox"], "`bide outbox` has no --url"),
        (["--prefix", "one", "rq-timer"], "`bide rq-timer` has no --prefix"),
    ],
)
def test_options_of_the_server_before_a_command_without_them(
    home: Path, args: list[str], says: str
) -> None:
    assert says in error_of(bide(home, *args), 2)
