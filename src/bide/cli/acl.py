"""`bide acl`: the least rights on the server for those who use some queues."""

from __future__ import annotations

import re
from typing import Final

import click

from bide.cli.options import json_option, queues_option, server_options
from bide.cli.screen import aside, echo, echo_json
from bide.connection import resolve_prefix, resolve_url
from bide.ids import check_name
from bide.rights import ROLES, Role, rules
from bide.servers import read_servers

_BARE: Final = re.compile(r"[\w:{}~&+@|*./%-]+", re.ASCII)


@click.command()
@click.argument("roles", nargs=-1, type=click.Choice(ROLES), metavar="[ROLE]...")
@queues_option("Whose keys; again for more.  [default: all queues of the prefix]")
@click.option("--user", metavar="NAME", help="Of one role's user.  [default: PREFIX-ROLE]")
@click.option("--fsync", is_flag=True, help='Also for durability="fsync" (Redis 7.2, Valkey).')
@server_options
@json_option
def acl(
    roles: tuple[Role, ...],
    queues: tuple[str, ...],
    user: str | None,
    fsync: bool,
    url: str | None,
    prefix: str | None,
    as_json: bool,
) -> None:
    """Print the least rights on the server for each ROLE.

    ROLE is worker, producer, operator or viewer; without one, all are printed. Asks no server: give
    the lines to redis-cli, of each node where --url is of a Cluster. They set no password, and keep
    one that is there.
    """
    prefix = check_name(resolve_prefix(prefix), "prefix")
    chosen = roles or ROLES
    if user is not None:
        check_name(user, "--user")
        if len(chosen) != 1:
            raise click.UsageError("--user names the user of one ROLE; give that one.")
    kind = read_servers(resolve_url(url)).kind
    users = {
        role: (user or f"{prefix}-{role}", rules(role, queues, prefix, kind, fsync=fsync))
        for role in chosen
    }
    if as_json:
        echo_json(
            {"users": [{"name": n, "role": role, "rules": r} for role, (n, r) in users.items()]}
        )
        return
    for name, given in users.values():
        echo(" ".join(map(quoted, ("ACL", "SETUSER", name, *given))))
    aside(
        "Give each a password: ACL SETUSER NAME '>PASSWORD'; ACL SAVE or CONFIG REWRITE keeps it."
    )


def quoted(word: str) -> str:
    """A word of a command line, as redis-cli reads it."""
    if _BARE.fullmatch(word):
        return word
    escaped = "".join(
        f"\\{chr(byte)}" if byte in b'"\\' else chr(byte) if 32 < byte < 127 else f"\\x{byte:02x}"
        for byte in word.encode()
    )
    return f'"{escaped}"'
