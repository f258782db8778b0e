"""Each command line of `deploy/` runs against a real server, answers, and stops on SIGTERM."""

from __future__ import annotations

import base64
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.deploy.commands import compose, lines, on_free_ports
from tests.support.console import environment
from tests.support.eventually import PATIENCE, eventually
from tests.support.processes import descendants
from tests.support.watched import DEPLOY

BIN = Path(sys.executable).parent
TOKEN = "a-token-of-a-viewer"
ASKED = {"worker": "/readyz", "web": "/", "metrics": "/metrics"}

LINES = sorted({on_free_ports(shlex.join(line)) for _, line in lines()})
"""Each once, with ports that are free."""

pytestmark = pytest.mark.slow


class Running:
    """A program that was started, and its log."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    def ports(self, count: int) -> list[int]:
        """The ports that so many programs say they listen on."""
        pattern = r"127\.0\.0\.1:(\d+)"
        eventually(lambda: len({*re.findall(pattern, self.log)}) >= count, told=lambda: self.log)
        return [int(port) for port in dict.fromkeys(re.findall(pattern, self.log))]


@contextmanager
def started(home: Path, url: str, *command: str) -> Iterator[Running]:
    """Run a command line of `deploy/` in the directory of the application there."""
    log = home / "log"
    env = environment(url, BIDE_WEB_VIEWER_TOKEN=TOKEN)
    env["PATH"] = f"{BIN}:{env['PATH']}"
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    # Appended to: supervisord's own lines would otherwise overwrite those of its programs.
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, cwd=DEPLOY / "shop", env=env, stdout=output, stderr=output
        )
    try:
        yield Running(process, log)
    finally:
        below = descendants(process.pid) if sys.platform == "linux" else set()
        process.kill()
        process.wait()
        for pid in below:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def status(port: int, path: str) -> int:
    """The status of an answer; 0 if nobody answers."""
    credentials = base64.b64encode(f"viewer:{TOKEN}".encode()).decode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", headers={"Authorization": f"Basic {credentials}"}
    )
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def test_every_file_has_a_worker() -> None:
    places = {place.split()[0] for place, line in lines() if line[:2] == ["bide", "worker"]}
    assert places == {
        *("Dockerfile", "compose.yaml", "kubernetes", "systemd", "supervisord", "Procfile"),
    }
    assert {line[1] for _, line in lines()} == {*ASKED}


@pytest.mark.parametrize("line", LINES)
def test_it_answers_and_stops_on_a_signal(tmp_path: Path, one_url: str, line: str) -> None:
    command = shlex.split(line)
    with started(tmp_path, one_url, *command) as running:
        (port,) = running.ports(1)
        eventually(lambda: status(port, ASKED[command[1]]) == 200, told=lambda: running.log)
        running.process.send_signal(signal.SIGTERM)
        # The dashboard's server, uvicorn, stops and then ends by the signal.
        codes = (0, -signal.SIGTERM) if command[1] == "web" else (0,)
        assert running.process.wait(PATIENCE) in codes, running.log


def test_an_option_that_there_is_not_would_be_noticed(tmp_path: Path, one_url: str) -> None:
    with started(tmp_path, one_url, *shlex.split(LINES[0]), "--no-such-option") as running:
        assert running.process.wait(PATIENCE) == 2
    assert "No such option" in running.log


def test_the_health_check_of_compose_follows_the_worker(tmp_path: Path, one_url: str) -> None:
    worker = compose()["services"]["worker"]
    kind, _, *rest = worker["healthcheck"]["test"]
    assert kind == "CMD"

    def check(port: int) -> int:
        command = [sys.executable, *(each.replace(":8080", f":{port}") for each in rest)]
        assert command[1:] != rest
        return subprocess.run(command, capture_output=True, check=False).returncode

    command = shlex.split(on_free_ports(shlex.join(worker["command"])))
    with started(tmp_path, one_url, *command) as running:
        (port,) = running.ports(1)
        eventually(lambda: check(port) == 0)
        running.process.send_signal(signal.SIGTERM)
        running.process.wait(PATIENCE)
        assert check(port) != 0


@pytest.mark.skipif(not (BIN / "supervisord").exists(), reason="supervisord is not installed")
def test_supervisord_runs_its_file(tmp_path: Path, one_url: str) -> None:
    text = on_free_ports((DEPLOY / "supervisord.conf").read_text())
    text = text.replace("directory=/srv/shop", f"directory={DEPLOY / 'shop'}")
    text = text.replace("[supervisord]", f"[supervisord]\nlogfile={tmp_path / 'supervisord.log'}")
    (tmp_path / "supervisord.conf").write_text(text)
    config = str(tmp_path / "supervisord.conf")
    with started(tmp_path, one_url, str(BIN / "supervisord"), "-c", config) as running:
        all_answer(running)


@pytest.mark.skipif(not (BIN / "honcho").exists(), reason="honcho is not installed")
def test_a_runner_of_procfiles_runs_its_file(tmp_path: Path, one_url: str) -> None:
    file = tmp_path / "Procfile"
    file.write_text(on_free_ports((DEPLOY / "Procfile").read_text()))
    command = (str(BIN / "honcho"), "start", "-f", str(file), "-d", str(DEPLOY / "shop"))
    with started(tmp_path, one_url, *command) as running:
        all_answer(running)


def all_answer(running: Running) -> None:
    """Wait until worker, dashboard and metrics answer, and stop them."""
    ports = running.ports(3)
    for path in ASKED.values():
        eventually(
            lambda path=path: any(status(port, path) == 200 for port in ports),  # type: ignore[misc]
            told=lambda: running.log,
        )
    running.process.send_signal(signal.SIGTERM)
    running.process.wait(PATIENCE)
    eventually(lambda: not any(status(port, "/livez") for port in ports))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
@pytest.mark.parametrize("unit", sorted(path.name for path in (DEPLOY / "systemd").iterdir()))
def test_systemd_accepts_its_units(tmp_path: Path, unit: str) -> None:
    text = (DEPLOY / "systemd" / unit).read_text()
    ours = text.replace("/srv/shop/.venv/bin/bide", str(BIN / "bide"))
    assert ours != text
    for content, is_right in (ours, True), (ours.replace("Restart=", "Restrat="), False):
        (tmp_path / unit).write_text(content)
        done = subprocess.run(
            ["systemd-analyze", "verify", str(tmp_path / unit)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode == 0 and not done.stderr) == is_right, done.stderr
