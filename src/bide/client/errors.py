"""Errors of servers and connections: whether a retry may help, and bide's error for each."""

from __future__ import annotations

import os
import re
from typing import Any, Final

from redis import exceptions as lib

from bide.client import acl
from bide.client.url import DEFAULT_URL
from bide.errors import (
    AccessDenied,
    BideError,
    ClientTooOld,
    ScriptBug,
    ServerFull,
    ServerReadOnly,
    ServerRefused,
    ServerUnavailable,
    UsageError,
)
from bide.protocol.commands import Command
from bide.protocol.keys import SCHEMA
from bide.protocol.scripts import SERVER_CLOCK
from bide.version import VERSION

_WRAPPED: Final = re.compile(r"Error running script .*?: -?([A-Z]+) (.*)", re.DOTALL)
_BY_CODE: Final[dict[str, type[lib.ResponseError]]] = {
    "OOM": lib.OutOfMemoryError,
    "READONLY": lib.ReadOnlyError,
    "NOPERM": lib.NoPermissionError,
    "MASTERDOWN": lib.MasterDownError,
    "MOVED": lib.MovedError,
    "ASK": lib.AskError,
    "TRYAGAIN": lib.TryAgainError,
    "CLUSTERDOWN": lib.ClusterDownError,
}


def unwrapped(error: lib.ResponseError) -> lib.ResponseError:
    """Return the error in the client library's class, for all versions of library and server.

    Up to Redis 6.2, the error of a command in a script is part of another error's text. Up to
    version 5 of the library, only its Cluster client knows the errors of a Cluster.
    """
    found = _WRAPPED.match(str(error))
    code, _, text = f"{found[1]} {found[2]}".partition(" ") if found else str(error).partition(" ")
    kind = _BY_CODE.get(code)
    if kind:
        return kind(text)
    return lib.ResponseError(f"{code} {text}") if found else error


def is_transient(error: Exception) -> bool:
    """Whether the same call may succeed a little later."""
    if isinstance(error, lib.AuthenticationError | lib.AuthorizationError):
        return False
    if isinstance(error, lib.ConnectionError | lib.TimeoutError | OSError):
        return True
    if isinstance(error, lib.ReadOnlyError | lib.TryAgainError | lib.ClusterDownError):
        return True
    return isinstance(error, lib.ResponseError) and str(error).startswith(
        ("LOADING", "MASTERDOWN", "TRYAGAIN", "BUSY ", "UNBLOCKED", "NOREPLICAS")
    )


def unavailable(error: Exception, where: str) -> ServerUnavailable:
    """Return the error for a server that cannot be reached."""
    reason = " ".join(str(error).rstrip(".").split()) or type(error).__name__
    for sign, sentence in _ANSWERS.items():
        if sign in reason:
            return ServerUnavailable(sentence.format(where=where, reason=reason))
    if "credentials=" in where and " raised " in reason:
        return ServerUnavailable(
            f"Cannot log in to the server at {where} ({reason}); correct the function of "
            "credentials=, or what it reads."
        )
    remedy = next((cure for sign, cure in _CURES if sign in reason), _START)
    if remedy is _START and where == DEFAULT_URL and os.path.exists(_DEV_SOCKET):
        remedy = _USE_DEV
    if remedy is _START and where.startswith("rediss") and "Timeout" in reason:
        remedy += "; if it speaks no TLS there, use redis:// instead of rediss://"
    # The server may close before the client has read why: TLS 1.3 asks for no answer in between.
    if where.startswith("rediss") and any(sign in reason for sign in _CLOSED):
        remedy = (
            f"start it again if it died; if it demands a certificate of its clients, {_OWN_PAIR}"
        )
    return ServerUnavailable(f"Cannot reach the server at {where} ({reason}); {remedy}.")


def is_passing(error: ServerUnavailable) -> bool:
    """Whether the server may be reached later without a change of the address."""
    return not any(sign in str(error) for sign in _LASTING)


_DEV_SOCKET: Final = ".bide/server.sock"
_USE_DEV: Final = (
    "`bide dev` runs in this directory: set $BIDE_URL to the address that it has printed"
)
_START: Final = "start it, or give its address with url= or $BIDE_URL"
_OWN_PAIR: Final = "name this client's own certificate with ?ssl_certfile=FILE&ssl_keyfile=FILE"
_CLOSED: Final = ("EOF occurred", "reset by peer", "Broken pipe", "closed by server")
_CURES: Final = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        "name the authority that signed its certificate with ?ssl_ca_certs=FILE, and the server as "
        "its certificate does",
    ),
    ("CERTIFICATE_REQUIRED", _OWN_PAIR),
    ("WRONG_VERSION_NUMBER", "it speaks no TLS there: use redis:// instead of rediss://"),
    (
        "No such file",
        "start it, or look at the paths in the address that url= or $BIDE_URL gives",
    ),
    ("reset by peer", "start it again if it died; if it wants TLS, use rediss:// and not redis://"),
)
"""A part of the connection's error, and the fix."""

_ANSWERS: Final = {
    "read only replica": "The server at {where} is a replica, which takes no changes; give the "
    "address of its master, or wait for the end of a failover.",
    "max number of clients": "The server at {where} has as many connections as its maxclients "
    "allows ({reason}); raise maxclients, or close connections that are not needed.",
    "BUSY ": "A script of another program blocks the server at {where} ({reason}); end that "
    "script, for example with SCRIPT KILL.",
}
"""A part of the error of a server that answers, and the sentence for it."""

_LASTING: Final = ("CERTIFICATE_VERIFY_FAILED", "CERTIFICATE_REQUIRED", "WRONG_VERSION_NUMBER")
"""Signs that the address has to be corrected: waiting does not help."""


_IN_SCRIPT: Final = ("The user executing the script can't", "ACL failure in script")
"""Server errors, the older first, for a permission that a command of the script lacks."""
_LACKS: Final = re.compile(r"unknown (redis )?command|syntax error|number of arg", re.IGNORECASE)
_USER_ALONE: Final = re.compile(r"://[^:@/]+@(?!.*(credentials|password)=)")
_SCHEMA: Final = re.compile(r"SCHEMA (\S+) (\S+)")


def map_error(
    error: Exception, where: str, command: Command[Any] | None = None, clock: str = SERVER_CLOCK
) -> BideError:
    """Convert an error of the client library to bide's error.

    `where` is the server's URL without its password; `command` is the refused command, if known.
    """
    if isinstance(error, BideError):
        return error
    text = str(error)
    if isinstance(error, lib.AskError) or "CROSSSLOT" in text:
        return UsageError(
            f"The server at {where} is a node of a Cluster; write redis+cluster://HOST:PORT."
        )
    if isinstance(error, lib.OutOfMemoryError) or text.startswith("OOM") or "OOM " in text[:80]:
        return ServerFull(
            f"The server at {where} has reached its maxmemory and refused to take more; raise "
            "maxmemory or let workers drain the backlog, then repeat the call."
        )
    if text.startswith("MISCONF"):
        return ServerReadOnly(
            f"The server at {where} cannot write to its disk, and refuses each change until it can "
            "(MISCONF); make room there, or see in its log what it lacks."
        )
    if isinstance(error, lib.AuthenticationError | lib.AuthorizationError):
        fix = "check the user, the password and the permissions"
        if _USER_ALONE.search(where):
            fix += "; a password without a user is written as redis://:PASSWORD@HOST"
        return AccessDenied(f"The server at {where} refuses access ({text.rstrip('.')}); {fix}.")
    if isinstance(error, lib.InvalidResponse):
        return ServerRefused(
            f"The program at {where} is not a Valkey or Redis server ({text}); check host and port."
        )
    if isinstance(error, lib.NoPermissionError) or any(words in text for words in _IN_SCRIPT):
        return AccessDenied(
            f"The server at {where} refuses access: {acl.missing(text, command, clock)}."
        )
    if text.startswith("DB index"):
        return UsageError(f"The server at {where} has no such database; most have 0 to 15.")
    if newer := _SCHEMA.search(text):
        return ClientTooOld(
            f"{newer[2]} at {where} has schema {newer[1]}, and bide {VERSION} knows {SCHEMA} at "
            "most; upgrade bide here. Nothing was changed."
        )
    if "BADARG" in text:
        return ScriptBug(f"{text}: a script was called with arguments that its header forbids.")
    if is_transient(error):
        return unavailable(error, where)
    if text.startswith("WRONGTYPE"):
        return ServerRefused(
            f"Another program uses keys of this name at {where} (WRONGTYPE); give bide another "
            "prefix, with prefix= or $BIDE_PREFIX, or a database of its own."
        )
    fix = "bide needs Redis 6.2 or later, or Valkey" if _LACKS.search(text) else "see its log"
    return ServerRefused(f"The server at {where} refused a command: {text.rstrip('.')}; {fix}.")
