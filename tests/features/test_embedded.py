"""The embedded server: how it starts and ends, and what it leaves behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from bide import embedded as server_module
from bide.embedded import Server, ServerError, ServerNotFound, wheel_server
from bide.errors import BideError
from tests.support.processes import children

StartServer = Callable[..., Server]
PATIENCE = 10.0  # seconds that anything here may take before it counts as never


def ping(url: str) -> bool:
    with redis.Redis.from_url(url) as client:
        return bool(client.ping())


def value(url: str, key: str) -> object:
    with redis.Redis.from_url(url) as client:
        return client.get(key)


def connect(directory: Path) -> socket.socket:
    """A connection to the server in a directory."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(PATIENCE)
    connection.connect(str(directory / "server.sock"))
    return connection


def ends(connection: socket.socket) -> bool:
    """Whether the server at the other end ends, however it does; TimeoutError if it lives on."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def eventually(condition: Callable[[], bool]) -> bool:
    """Poll, for what signals its change to nobody (a file another process removes)."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


class TestStarting:
    def test_each_flavour_answers_and_says_what_it_is(self, server: Server) -> None:
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            info: dict[str, Any] = client.info()
            config: dict[str, str] = client.config_get()
        assert info["process_id"] == server.pid
        assert server.flavour == info.get("server_name", "redis")
        assert server.version == str(info.get("valkey_version", info["redis_version"]))
        assert config["maxmemory-policy"] == "noeviction"
        assert config["appendonly"] == "no"
        assert config["save"] == ""
        assert config["port"] == "0"
        assert config["protected-mode"] == "yes"

    def test_only_its_owner_can_reach_its_socket(self, tmp_server: StartServer) -> None:
        directory = tmp_server().directory
        assert stat.S_IMODE(directory.stat().st_mode) == 0o700
        assert stat.S_IMODE((directory / "server.sock").stat().st_mode) == 0o700

    def test_tcp_listens_on_the_loopback_interface_alone(self, tmp_server: StartServer) -> None:
        server = tmp_server(tcp=True)
        assert server.url.startswith("redis://127.0.0.1:")
        assert ping(server.url)
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            assert client.config_get("bind") == {"bind": "127.0.0.1"}

    def test_a_port_taken_meanwhile_is_exchanged_for_another(
        self, tmp_server: StartServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            ports = [taken.getsockname()[1]]
            free_port = server_module._free_port
            monkeypatch.setattr(
                server_module, "_free_port", lambda: ports.pop() if ports else free_port()
            )
            server = tmp_server(tcp=True)
            assert f":{taken.getsockname()[1]}/" not in server.url
        assert ports == []
        assert ping(server.url)

    def test_anothers_server_on_the_port_is_not_taken_for_ours(
        self, tmp_server: StartServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first = tmp_server(tcp=True)
        ports = [int(first.url.split(":")[2].removesuffix("/0"))]
        free_port = server_module._free_port
        monkeypatch.setattr(
            server_module, "_free_port", lambda: ports.pop() if ports else free_port()
        )
        second = tmp_server(tcp=True)
        assert ports == []
        assert second.url != first.url
        assert second.pid != first.pid

    def test_two_at_once_know_nothing_of_each_other(self, tmp_server: StartServer) -> None:
        one, other = tmp_server(), tmp_server()
        with redis.Redis.from_url(one.url) as client:
            client.set("key", "one")
        assert value(one.url, "key") == b"one"
        assert value(other.url, "key") is None

    def test_a_directory_is_made_and_named_as_the_user_likes(
        self, tmp_server: StartServer, tmp_path: Path
    ) -> None:
        directory = tmp_path / "a b" / "50%?#ü"
        server = tmp_server(directory=directory)
        assert ping(server.url)
        assert (directory / "server.log").stat().st_size > 0
        server.stop()
        assert directory.exists()

    def test_a_directory_may_be_text_or_any_path(
        self, tmp_server: StartServer, tmp_path: Path
    ) -> None:
        class Folder:
            def __fspath__(self) -> str:
                return str(tmp_path / "any")

        for directory, expected in (
            (str(tmp_path / "text"), tmp_path / "text"),
            (Folder(), tmp_path / "any"),
        ):
            server = tmp_server(directory=directory)
            assert ping(server.url)
            assert server.directory == expected
            server.stop()

    def test_a_path_too_long_for_a_socket(self, tmp_server: StartServer, tmp_path: Path) -> None:
        server = tmp_server(directory=tmp_path / ("d" * 120))
        assert ping(server.url)
        path = Path(server.url.removeprefix("unix://").removesuffix("?db=0"))
        assert len(os.fsencode(path)) <= 103
        server.stop()
        assert server.directory.exists()
        assert not path.parent.exists()

    def test_options_of_the_users_own(self, tmp_server: StartServer) -> None:
        server = tmp_server(extra=["--maxmemory", "10mb"])
        with redis.Redis.from_url(server.url, decode_responses=True) as client:
            assert client.config_get("maxmemory") == {"maxmemory": "10485760"}

    def test_a_password_keeps_it_from_no_start(self, tmp_server: StartServer) -> None:
        server = tmp_server(extra=["--requirepass", "secret"])
        with redis.Redis.from_url(server.url, password="secret") as client:
            assert client.ping()

    def test_a_server_that_refuses_says_why_and_leaves_nothing(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
        before = children(os.getpid())
        with pytest.raises(ServerError, match="no-such-option") as caught:
            Server.start(binary=wheel_server(), extra=["--no-such-option", "1"])
        assert isinstance(caught.value, BideError)
        assert list(tmp_path.iterdir()) == []
        assert children(os.getpid()) == before

    def test_a_server_that_never_answers_is_given_up(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        deaf = tmp_path / "deaf"
        deaf.write_text(
            "#!/bin/sh\n"
            '[ "$1" = --version ] && echo "Redis server v=7.0.0" && exit\n'
            "echo humming in $LC_ALL; exec tail -f /dev/null\n"
        )
        deaf.chmod(0o755)
        monkeypatch.setattr(server_module, "START_TIMEOUT", 0.1)
        monkeypatch.setenv("LC_ALL", "xx_XX.UTF-8")  # not installed: some servers refuse it
        before = children(os.getpid())
        with pytest.raises(ServerError, match=r"(?s)did not answer within 0\.1 s.*humming in C"):
            Server.start(tmp_path / "data", binary=str(deaf))
        assert children(os.getpid()) == before

    def test_a_program_that_is_no_server(self, tmp_path: Path) -> None:
        with pytest.raises(ServerNotFound, match="not a Valkey or Redis server"):
            Server.start(binary=sys.executable)
        with pytest.raises(ServerNotFound, match="nowhere"):
            Server.start(binary=str(tmp_path / "nowhere"))


class TestEnding:
    def test_stop_ends_it_and_removes_what_was_temporary(self, tmp_server: StartServer) -> None:
        before = children(os.getpid())
        server = tmp_server()
        assert len(children(os.getpid())) == len(before) + 2  # the server and its watcher
        with connect(server.directory) as connection:
            server.stop()
            assert ends(connection)
        assert children(os.getpid()) == before
        assert not server.directory.exists()
        server.stop()
        with pytest.raises(ServerError, match="start another"):
            server.restart()

    def test_a_kill_and_a_restart_keep_address_and_data(
        self, tmp_server: StartServer, tmp_path: Path
    ) -> None:
        server = tmp_server(directory=tmp_path, persist=True)
        url, pid = server.url, server.pid
        with redis.Redis.from_url(url) as client:
            client.set("key", "kept")
        with connect(server.directory) as connection:
            server.kill()
            assert ends(connection)
        server.restart()
        assert (server.url, value(url, "key")) == (url, b"kept")
        assert server.pid != pid

    def test_a_restart_of_a_running_server(self, tmp_server: StartServer) -> None:
        server = tmp_server(tcp=True)
        url, pid = server.url, server.pid
        with redis.Redis.from_url(url) as client:
            client.set("key", "lost")
        server.restart()
        assert server.pid != pid
        assert (server.url, value(url, "key")) == (url, None)

    def test_data_outlive_the_server_in_a_directory_of_the_users_own(
        self, tmp_server: StartServer, tmp_path: Path
    ) -> None:
        first = tmp_server(directory=tmp_path, persist=True)
        with redis.Redis.from_url(first.url) as client:
            client.set("key", "kept")
        first.stop()
        second = tmp_server(directory=tmp_path, persist=True)
        assert value(second.url, "key") == b"kept"

    def test_two_cannot_have_one_directory(
        self, tmp_server: StartServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server_module, "_LOCK_TIMEOUT", 0.05)
        first = tmp_server(directory=tmp_path)
        with pytest.raises(ServerError, match="another server runs in"):
            tmp_server(directory=tmp_path)
        assert ping(first.url)
        first.kill()
        assert ping(tmp_server(directory=tmp_path).url)

    def test_a_forked_child_does_not_own_it(self, tmp_server: StartServer) -> None:
        server = tmp_server()
        pid = os.fork()
        if pid == 0:
            try:
                server.stop()
                server.kill()
            finally:
                os._exit(0)
        assert os.waitpid(pid, 0)[1] == 0
        assert ping(server.url)


OWNER = """
import os, signal, sys, threading
from bide.embedded import Server

{first}
servers = []
thread = threading.Thread(target=lambda: servers.append(Server.start(binary=sys.argv[1])))
thread.start()
thread.join()  # the thread that started it ends, and must not take the server along
{then}
print(servers[0].directory, flush=True)
signal.pause()
"""

FORK = """
if os.fork() == 0:
    signal.pause()
"""

FORK_MEANWHILE = """
import subprocess
from bide import embedded

class Popen(subprocess.Popen):
    def __init__(self, command, **options):
        super().__init__(command, **options)
        if embedded._WATCH in command:  # the watcher has started, and nobody knows it yet
            thread = threading.Thread(target=fork)
            thread.start()
            thread.join()

def fork():
    if os.fork() == 0:
        signal.pause()

subprocess.Popen = Popen
"""

Owner = tuple[subprocess.Popen[str], Path]
OwnerStarter = Callable[..., Owner]


@pytest.fixture
def own() -> Iterator[OwnerStarter]:
    """Start a program that starts a server; give its process and the server's directory."""
    owners: list[subprocess.Popen[str]] = []

    def start(then: str = "", first: str = "") -> Owner:
        binary = wheel_server()
        assert binary is not None
        owner = subprocess.Popen(
            [sys.executable, "-c", OWNER.format(then=then, first=first), binary],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        owners.append(owner)
        assert owner.stdout is not None
        return owner, Path(owner.stdout.readline().strip())

    yield start
    for owner in owners:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(owner.pid, signal.SIGKILL)
        owner.communicate()


class TestParent:
    @pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
    def test_it_dies_with_its_parent(self, own: OwnerStarter, how: signal.Signals) -> None:
        owner, directory = own()
        with connect(directory) as connection:
            connection.sendall(b"PING\r\n")
            assert connection.recv(16) == b"+PONG\r\n"
            owner.send_signal(how)
            assert owner.wait(PATIENCE) == -how
            assert ends(connection)
        assert eventually(lambda: not directory.exists())

    def test_a_forked_child_does_not_keep_it_alive(self, own: OwnerStarter) -> None:
        owner, directory = own(FORK)
        with connect(directory) as connection:
            owner.kill()
            assert owner.wait(PATIENCE) == -signal.SIGKILL
            assert ends(connection)

    def test_nor_does_one_that_another_thread_forks_while_it_starts(
        self, own: OwnerStarter
    ) -> None:
        owner, directory = own(first=FORK_MEANWHILE)
        with connect(directory) as connection:
            owner.kill()
            assert owner.wait(PATIENCE) == -signal.SIGKILL
            assert ends(connection)

    def test_a_terminals_signals_do_not_reach_it(self, own: OwnerStarter) -> None:
        owner, _ = own()
        started = children(owner.pid)
        assert len(started) == 2
        assert owner.pid not in {os.getsid(pid) for pid in started}

    def test_a_parent_that_dies_before_the_gate_opens_leaves_none(self, tmp_path: Path) -> None:
        marker = tmp_path / "ran"
        gate = subprocess.run(
            ["/bin/sh", "-c", server_module._GATE, "sh", "touch", str(marker)],
            stdin=subprocess.DEVNULL,
        )
        assert gate.returncode != 0
        assert not marker.exists()
