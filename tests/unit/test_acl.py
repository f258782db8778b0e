"""Which role has which permissions, and what is said where one is missing."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bide.client.acl import ROLES, SCRIPTS, missing, rules
from bide.model.payload.body import Body, encode_body
from bide.protocol import scripts
from bide.protocol.commands import Command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import fsck as fsck_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands.enqueue import Prepared
from bide.protocol.keys import Keys, keys_of
from bide.protocol.scripts import SERVER_CLOCK, TEST_CLOCK

MAIL = keys_of("mail")
NEWER = "ACL failure in script: User v has no permissions to run the 'zrem' command script: on"
OLDER = "The user executing the script can't run this command or subcommand script: 72b8, on"
OLDEST = "Error running script (call to f_72b8): @user_script:{0}: @user_script: {0}: The user"


def cancel(keys: Keys = MAIL) -> Command[Any]:
    return job_commands.cancel(keys, ["a"])


def line_of(name: str, text: str, clock: str = SERVER_CLOCK) -> int:
    """The first line of a script, as it is sent, that has this text."""
    lines = scripts.load(name, clock).text.split("\n")
    return next(i for i, line in enumerate(lines, 1) if text in line)


def test_each_script_is_of_a_role() -> None:
    assert {name for role in ROLES for name in SCRIPTS[role]} == {*scripts.names()}


def test_who_works_can_do_all_that_who_produces_can() -> None:
    worker, producer = rules("worker", ["mail"], "bide"), rules("producer", ["mail"], "bide")
    assert {*producer} < {*worker}


def test_a_viewer_has_no_command_that_writes() -> None:
    given = {rule for rule in rules("viewer", [], "bide") if rule[0] == "+"}
    writes = ("h(set|del|incr)", "z(add|rem|pop)", "x(add|del|trim)", "[lr](push|pop|trim)")
    pattern = "|".join((*writes, "del", "rename", "set", "p?expire", "publish"))
    assert not [rule for rule in given if re.match(rf"\+({pattern})", rule)]


def test_a_name_that_is_a_pattern_fits_no_other() -> None:
    assert r"~bide:{a\*\?\[b\]\^}:*" in rules("producer", ["a*?[b]^"], "bide")


def test_what_a_user_had_before_is_taken_away() -> None:
    assert rules("viewer", [], "bide")[:4] == ["on", "resetkeys", "resetchannels", "-@all"]


@pytest.mark.parametrize("role", ROLES)
def test_no_role_has_what_is_for_administrators(role: str) -> None:
    given = rules(role, [], "bide", "cluster", fsync=True)  # type: ignore[arg-type]
    names = {rule[1:].partition("|")[0] for rule in given if rule[0] == "+"}
    assert not names & {"acl", "config", "debug", "eval", "flushall", "keys", "client", "shutdown"}
    assert {rule for rule in given if rule[:7] == "+cluster"} <= {"+cluster|slots", "+cluster|info"}
    assert all(rule[1:].startswith("bide:") for rule in given if rule[0] in "~&")


@pytest.mark.parametrize(
    "said", [f"{NEWER} @user_script:{{0}}.", f"{OLDER} @user_script:{{0}}.", OLDEST]
)
@pytest.mark.parametrize("clock", [SERVER_CLOCK, TEST_CLOCK])
def test_a_command_of_a_script_is_named_whatever_the_servers_age(said: str, clock: str) -> None:
    line = line_of("cancel", "redis.call('ZREM'", clock)
    assert missing(said.format(line), cancel(), clock) == (
        "its user lacks the permission +zrem; `bide acl operator producer worker -q mail` prints "
        "the permissions that this needs"
    )


@pytest.mark.parametrize(
    ("command", "lacks", "needs"),
    [
        (
            cancel(),
            "permissions ~bide:{mail} and ~bide:{mail}:*",
            "operator producer worker -q mail",
        ),
        (
            cancel(keys_of("später;x", "shop:eu")),
            "permissions ~shop:eu:{später;x} and ~shop:eu:{später;x}:*",
            "operator producer worker -q 'später;x' --prefix shop:eu",
        ),
        (
            enqueue_commands.enqueue(MAIL, [Prepared("a", "+0", 5, encode_body(Body("a:b")))]),
            "permissions ~bide:{mail} and ~bide:{mail}:*",
            "producer worker -q mail",
        ),
        (queue_commands.queues(keys_of(None)), "permission ~bide:queues", ""),
        (
            fsck_commands.look_at_workers(keys_of(None), "0", False),
            "permission ~bide:workers",
            "operator",
        ),
    ],
)
@pytest.mark.parametrize(
    "said",
    ["No permissions to access a key", "this user has no permissions to access one of the keys"],
)
def test_keys_are_named_with_who_may_reach_them(
    said: str, command: Command[Any], lacks: str, needs: str
) -> None:
    assert missing(said, command, SERVER_CLOCK) == (
        f"its user lacks the {lacks}; `{f'bide acl {needs}'.strip()}` prints the permissions that "
        "this needs"
    )


def test_a_viewer_may_not_load_scripts() -> None:
    """What it loads stays in the server's memory, and may run for ever."""
    loads = {role: "+script|load" in rules(role, ["mail"], "bide") for role in ROLES}
    assert loads == {"worker": True, "producer": True, "operator": True, "viewer": False}


def test_what_is_no_scripts_is_said_as_the_server_says_it() -> None:
    said = "User v has no permissions to run the 'xread' command"
    end = "`bide acl` prints what each role needs"
    assert missing(said, None, SERVER_CLOCK) == f"its user lacks the permission +xread; {end}"
    channel = "No permissions to access a channel"
    assert missing(channel, None, SERVER_CLOCK) == f"{channel}; {end}"


def test_a_line_that_is_not_there_is_no_error_of_its_own() -> None:
    """Another program may have given the server a script."""
    said = missing(f"{OLDER} @user_script:99999.", cancel(), SERVER_CLOCK)
    assert "`bide acl operator producer worker -q mail`" in said
