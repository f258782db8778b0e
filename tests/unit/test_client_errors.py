"""What stands for the client library's errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from redis import exceptions as lib

from bide.client.errors import is_passing, is_transient, map_error, unavailable, unwrapped
from bide.client.url import DEFAULT_URL
from bide.errors import (
    AccessDenied,
    BideError,
    ScriptBug,
    ServerFull,
    ServerReadOnly,
    ServerRefused,
    ServerUnavailable,
    UsageError,
)
from bide.protocol.commands import jobs as job_commands
from bide.protocol.keys import keys_of

WHERE = "redis://host:6379/0"
GONE = lib.ConnectionError("Connection closed by server.")


@pytest.mark.parametrize(
    ("error", "kind", "says"),
    [
        (
            lib.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."),
            ServerFull,
            "raise maxmemory",
        ),
        (lib.ResponseError("OOM command not allowed when used memory"), ServerFull, "maxmemory"),
        (lib.ResponseError("user_script:5: OOM command not allowed"), ServerFull, "maxmemory"),
        (lib.NoPermissionError("this user has no permissions"), AccessDenied, "`bide acl "),
        (lib.ResponseError("BADARG settle rest"), ScriptBug, "its header forbids"),
        (lib.ResponseError("WRONGTYPE Operation against a key"), ServerRefused, "WRONGTYPE"),
        (lib.ResponseError("ERR unknown command"), ServerRefused, "bide needs Redis 6.2"),
        (
            lib.ResponseError("Unknown Redis command called from script"),
            ServerRefused,
            "bide needs Redis 6.2",
        ),
        (lib.ResponseError("ERR of a new kind"), ServerRefused, "ERR of a new kind; see its log."),
        (lib.ResponseError("MISCONF Redis is configured to"), ServerReadOnly, "write to its disk"),
        (
            lib.ReadOnlyError("You can't write against a read only replica."),
            ServerUnavailable,
            "give the address of its master",
        ),
        (
            lib.ConnectionError("max number of clients reached"),
            ServerUnavailable,
            "raise maxclients",
        ),
        (
            lib.ResponseError("BUSY Valkey is busy running a script."),
            ServerUnavailable,
            "end that script",
        ),
        (
            lib.InvalidResponse('Protocol error, got "<" as reply type byte'),
            ServerRefused,
            "check host and port",
        ),
    ],
)
def test_each_refusal_has_an_error_that_says_what_to_do(
    error: Exception, kind: type[BideError], says: str
) -> None:
    translated = map_error(error, WHERE, job_commands.pause(keys_of("q")))
    assert type(translated) is kind
    assert says in str(translated)


def test_a_function_for_the_password_that_raises_is_to_be_corrected() -> None:
    raised = lib.ConnectionError("shop:token raised OSError: no file")
    said = str(map_error(raised, f"{WHERE}?credentials=shop:token"))
    assert said.startswith("Cannot log in")
    assert "correct the function of credentials=" in said


@pytest.mark.parametrize(
    ("where", "hints"),
    [
        ("redis://secret@host", True),
        ("redis://user:***@host", False),
        ("redis://host", False),
        ("redis://user@host?password=***", False),
    ],
)
def test_a_password_in_the_place_of_the_user(where: str, hints: bool) -> None:
    said = str(map_error(lib.AuthenticationError("WRONGPASS invalid"), where))
    assert ("is written as redis://:PASSWORD@HOST" in said) is hints


def test_an_old_server_wraps_what_a_script_met() -> None:
    wrapped = (
        "Error running script (call to f_0): @user_script:9: -MISCONF Errors writing to the AOF"
    )
    assert isinstance(map_error(unwrapped(lib.ResponseError(wrapped)), WHERE), ServerReadOnly)


def test_a_database_that_is_not_there_is_named() -> None:
    assert isinstance(map_error(lib.ResponseError("DB index is out of range"), WHERE), UsageError)


def test_every_error_is_one_of_ours_and_one_of_pythons() -> None:
    assert isinstance(map_error(GONE, WHERE), ConnectionError)
    assert isinstance(map_error(lib.NoPermissionError("x"), WHERE), PermissionError)
    errors: Sequence[Exception] = [GONE, lib.ResponseError("x"), OSError(), lib.DataError("x")]
    assert all(isinstance(map_error(error, WHERE), BideError) for error in errors)


def test_access_denied_does_not_pass_though_the_library_calls_it_a_connection_error() -> None:
    assert isinstance(lib.AuthenticationError("x"), lib.ConnectionError)
    assert not is_transient(lib.AuthenticationError("x"))
    assert is_transient(lib.ConnectionError("x"))


@pytest.mark.parametrize(
    ("said", "passes"),
    [
        ("Error 111 connecting to 127.0.0.1:6379. Connection refused.", True),
        ("Redis is loading the dataset in memory", True),
        ("Error -2 connecting to valkey:6379. Name or service not known.", True),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get issuer", False),
        ("[SSL: TLSV13_ALERT_CERTIFICATE_REQUIRED] alert certificate required", False),
        ("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)", False),
    ],
)
def test_waiting_cures_a_server_that_is_down_and_no_address_that_is_wrong(
    said: str, passes: bool
) -> None:
    assert is_passing(unavailable(lib.ConnectionError(said), WHERE)) is passes


def test_the_server_of_bide_dev_is_named_where_no_address_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hint = "`bide dev` runs in this directory: set $BIDE_URL to the address that it has printed."
    error = lib.ConnectionError("Error 111 connecting to 127.0.0.1:6379. Connection refused.")
    monkeypatch.chdir(tmp_path)
    assert hint not in str(unavailable(error, DEFAULT_URL))
    (tmp_path / ".bide").mkdir()
    (tmp_path / ".bide" / "server.sock").touch()
    assert str(unavailable(error, DEFAULT_URL)).endswith(hint)
    assert hint not in str(unavailable(error, WHERE))


def test_a_server_that_does_not_answer_tls_may_speak_none() -> None:
    hint = "use redis:// instead of rediss://"
    error = lib.TimeoutError("Timeout connecting to server")
    assert hint in str(unavailable(error, "rediss://host:6379/0"))
    assert hint not in str(unavailable(error, WHERE))


@pytest.mark.parametrize(
    "said",
    [
        "Error 8 while writing to socket. EOF occurred in violation of protocol (_ssl.c:2427).",
        "Error 104 while writing to socket. Connection reset by peer.",
        "Error 32 while writing to socket. Broken pipe.",
        "Connection closed by server.",
    ],
)
def test_a_server_that_closes_over_tls_may_demand_a_certificate(said: str) -> None:
    error, hint = lib.ConnectionError(said), "this client's own certificate"
    assert hint in str(unavailable(error, "rediss://host:6379/0"))
    assert is_passing(unavailable(error, "rediss://host:6379/0"))
    assert hint not in str(unavailable(error, WHERE))
