"""Users of a server who have the permissions that `bide acl` prints for a role, and no others."""

from __future__ import annotations

from typing import Any

import redis

from bide.client.acl import Role, rules
from bide.client.url import read_servers


def as_role(url: str, client: redis.Redis, role: Role, *queues: str) -> str:
    """Make such a user, through a client that may; the server's URL with it."""
    made: Any = client.execute_command(  # type: ignore[no-untyped-call]
        "ACL",
        "SETUSER",
        role,
        "reset",
        ">secret",
        *rules(role, queues, "bide", read_servers(url).kind),
    )
    assert made
    return f"{url}{'&' if '?' in url else '?'}username={role}&password=secret"
