"""A script's header is its contract: the script, its caller and the layout of keys keep it.

The first half reads the Lua files; the second calls every operation and compares what it sends with
what the header asks for, and lets a server judge each script's text.
"""

from __future__ import annotations

import inspect as introspection
import re
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import redis

from bide.client import blocking
from bide.errors import ScriptBug
from bide.protocol import scripts
from bide.protocol.commands import Command
from bide.protocol.commands import enqueue as enqueue_commands
from bide.protocol.commands import fsck as fsck_commands
from bide.protocol.commands import jobs as job_commands
from bide.protocol.commands import queues as queue_commands
from bide.protocol.commands import schedules as schedule_commands
from bide.protocol.commands import worker as worker_commands
from bide.protocol.keys import GLOBAL, LAYOUT, Keys, keys_of
from bide.protocol.scripts import SERVER_CLOCK, SHARED_CLOCK, TEST_CLOCK, Script, load, names
from tests.support.operations import MAIL, OPERATIONS
from tests.unit.luasource import calls, declared, tokens, undeclared
from tests.unit.luasource import names as names_in

FOLDER = resources.files("bide.protocol").joinpath("lua")
INCLUDES = sorted(
    f.name.removesuffix(".lua") for f in FOLDER.joinpath("include").iterdir() if f.is_file()
)
LUA = sorted((Path(__file__).parents[2] / "src" / "bide").rglob("*.lua"))
TAGS = {"key", "arg", "rest", "last", "reply", "include"}

every_script = pytest.mark.parametrize("name", names())
every_include = pytest.mark.parametrize("include", INCLUDES)


def source(path: str) -> str:
    return FOLDER.joinpath(*path.split("/")).read_text("utf-8")


def source_of(part: str) -> str:
    return source(f"include/{part}.lua")


def header_and_body(name: str) -> tuple[list[str], str]:
    lines = source(f"{name}.lua").splitlines()
    end = next(i for i, line in enumerate(lines) if not line.startswith("--"))
    return lines[:end], "\n".join(lines[end:])


def tagged(script: Script, tag: str) -> list[str]:
    return [text for kind, text in script.header if kind == tag]


def parts_of(name: str) -> list[str]:
    """All parts of a script, also those that its parts use."""
    return scripts._parts(scripts._split(f"{name}.lua")[1])


def parts_used(text: str) -> set[str]:
    """The parts of which a chunk calls a function or reads a field."""
    words = ["", *tokens(text), ""]
    return {
        word
        for before, word, after in zip(words, words[1:], words[2:], strict=False)
        if word in INCLUDES and before != "." and after in (".", "[")
    }


# -- the header


@every_script
def test_the_first_line_says_what_the_script_does_in_a_sentence(name: str) -> None:
    first = header_and_body(name)[0][0]
    assert re.fullmatch(rf"-- {name}: [a-z].*[^ ]\.", first), first
    assert load(name).summary == first.removeprefix(f"-- {name}: ")


@every_script
def test_every_other_line_of_the_header_is_a_tag_that_the_loader_knows(name: str) -> None:
    script = load(name)
    lines = header_and_body(name)[0][1:]
    found = [re.fullmatch(r"-- @(\w+) +(\S.*)", line) for line in lines]
    assert all(found), lines
    tags = [m[1] for m in found if m]
    assert tags == sorted(tags, key=["key", "arg", "rest", "last", "reply", "include"].index)
    own = scripts._split(f"{name}.lua")[0]
    assert script.header[: len(own)] == own
    assert {tag for tag, _ in script.header} <= TAGS
    assert tagged(script, "reply"), "what it answers"
    assert len(tagged(script, "rest")) <= 1


@pytest.mark.parametrize("path", LUA, ids=lambda path: path.name)
def test_a_line_is_as_short_as_those_of_python(path: Path) -> None:
    lines = path.read_text("utf-8").splitlines()
    assert [f"{path}:{n}" for n, line in enumerate(lines, 1) if len(line) > 100] == []


@every_script
def test_keys_are_names_of_the_layout(name: str) -> None:
    script = load(name)
    assert set(script.keys) <= {*LAYOUT, *GLOBAL}
    assert len(set(script.keys)) == len(script.keys)


@every_script
def test_a_script_takes_the_keys_of_one_queue_or_one_that_no_queue_owns(name: str) -> None:
    """All keys of a call must share a slot of a Cluster."""
    script = load(name)
    if set(script.keys) <= {*GLOBAL}:
        (key,) = keys_of(None).of(script.keys)
        assert "{" not in key
    else:
        keys = keys_of("mail").of(script.keys)
        assert {re.findall(r"\{.*?\}", key)[0] for key in keys} == {"{mail}"}
        assert len(set(keys)) == len(keys)


def test_a_queue_that_is_forgotten_leaves_no_key() -> None:
    assert set(load("forget").keys) == set(LAYOUT)


@every_script
def test_arguments_have_a_kind_and_a_name_of_their_own(name: str) -> None:
    script = load(name)
    for text in tagged(script, "arg"):
        assert re.fullmatch(r"[a-z_]+ +(integer|text)\b.*", text), text
    locals_ = [*script.keys, *script.args]
    assert len(set(locals_)) == len(locals_)
    assert not set(locals_) & set(INCLUDES)


# -- the body


@every_script
def test_what_the_header_declares_is_used(name: str) -> None:
    script = load(name)
    body = header_and_body(name)[1]
    used = set(names_in(body))
    assert set(script.args) <= used | {"cursor", "limit", "repair"}  # which `fsck` uses
    assert ("rest" in used) == bool(script.rest)
    assert {script.last} <= used | {None}
    assert {word for text in tagged(script, "include") for word in text.split()} <= {
        *parts_of(name)
    }


@every_script
def test_a_script_takes_the_keys_and_the_parts_that_its_text_uses(name: str) -> None:
    """The loader reads the text by patterns, and this test by its words."""
    script = load(name)
    texts = [header_and_body(name)[1], *map(source_of, parts_of(name))]
    keys = {key for text in texts for key in set(names_in(text)) - declared(text)}
    assert {*script.keys} - {"meta"} == keys & {*LAYOUT, *GLOBAL} - {"meta", *script.args}
    assert "meta" in script.keys or "meta" not in keys
    assert {*parts_of(name)} == {part for text in texts for part in parts_used(text)}


@pytest.mark.slow
@every_script
@pytest.mark.parametrize("clock", [SERVER_CLOCK, TEST_CLOCK, SHARED_CLOCK])
def test_what_is_used_is_declared(name: str, clock: str) -> None:
    """A key that the header does not name would be nil; a misspelt name, a global."""
    assert undeclared(load(name, clock).text) == set()


@every_script
def test_nothing_that_the_header_declares_is_hidden_by_another_local(name: str) -> None:
    script = load(name)
    assert not declared(header_and_body(name)[1]) & {*script.keys, *script.args, "rest"}


@every_script
def test_the_body_names_no_key_by_itself(name: str) -> None:
    body = header_and_body(name)[1]
    assert "KEYS" not in tokens(body)
    known = {*load(name).keys, *declared(body)}
    for call in calls(body):
        if call.command in ("TIME", "INFO", "SCAN"):
            continue
        assert call.root in known, call
        assert ".." not in call.key, "a key's name is never made in a script"


@every_include
def test_a_part_names_no_key_by_itself(include: str) -> None:
    assert "KEYS" not in tokens(source_of(include))


@every_include
def test_every_include_is_included(include: str) -> None:
    parts = {part for name in names() for part in parts_of(name)}
    assert include in parts or include in {f"clock_{TEST_CLOCK}", f"clock_{SHARED_CLOCK}"}


# -- rules that every script keeps


@every_script
@pytest.mark.parametrize("clock", [SERVER_CLOCK, TEST_CLOCK, SHARED_CLOCK])
def test_the_clock_is_read_once(name: str, clock: str) -> None:
    assert "'TIME'" not in header_and_body(name)[1]
    assert load(name, clock).text.count("'TIME'") <= 1


@every_script
def test_no_time_is_turned_to_text_by_the_language(name: str) -> None:
    """`tostring(now)` and `..` give 1.7951913446194e+15; `string.format('%.0f')` gives them all."""
    text = load(name).text
    assert "tostring" not in tokens(text)
    number = r"(now|seq|count|started|lease_end|deadline|until\w*|\w+_us|\w+_at)"
    assert not re.search(rf"\.\. *{number}\b|\b{number} *\.\.", text)


@every_script
def test_a_body_is_never_decoded_on_the_server(name: str) -> None:
    assert not {"cjson", "cmsgpack", "struct", "loadstring", "load"} & set(tokens(load(name).text))


BOUNDED = """
INFO TIME LLEN LPUSH LTRIM DEL RENAME EXISTS TYPE PTTL PUBLISH PEXPIRE
HGET HSET HSETNX HDEL HMGET HLEN HSTRLEN HEXISTS HINCRBY HRANDFIELD
ZADD ZREM ZCARD ZCOUNT ZSCORE ZMSCORE ZPOPMIN ZRANGE ZRANGEBYSCORE ZREVRANGEBYSCORE
ZREVRANGE ZREMRANGEBYSCORE ZRANDMEMBER ZRANGEBYLEX ZLEXCOUNT
XADD XRANGE XREVRANGE
ZLEXCOUNT ZRANGEBYLEX UNLINK
SCAN HSCAN ZSCAN
"""
"""Commands of Redis 6.2 whose work the call itself bounds, or that look at what is small."""


@every_script
def test_no_script_grows_with_the_queue(name: str) -> None:
    """Nor needs a server newer than 6.2."""
    text = load(name).text
    for call in calls(text):
        if call.command in ("HGETALL", "HKEYS"):
            assert call.root in ("meta", "workers", "queues"), call
        else:
            assert call.command in BOUNDED.split(), call
    assert not re.search(r"'Z(REV)?RANGE', [\w\[\]]+, 0, -1", text)
    for adds in re.findall(r"'XADD',[^)]*", text):
        assert "'MAXLEN', '~', COUNT" in adds, adds
    for by_id in re.findall(r"'X(?:REV)?RANGE',[^)]*", text):
        assert by_id.endswith("'COUNT', 1"), by_id
    for scan in re.findall(r"'[HZ]?SCAN',[^)]*", text):
        assert re.search(r"'COUNT', (limit|PIECE|1)$", scan), scan
    for by_score in re.findall(r"'Z(?:REV)?RANGEBY(?:SCORE|LEX)',[^)]*\)[^)]*\)?", text):
        assert "'LIMIT'" in by_score, by_score


@every_script
def test_whoever_removes_by_score_removes_what_has_passed_of_few(name: str) -> None:
    """ZREMRANGEBYSCORE is bounded by the number of workers or listeners, and by nothing else."""
    for call in calls(load(name).text):
        if call.command == "ZREMRANGEBYSCORE":
            assert call.root in ("keep", "park", "listeners")


# -- operations


COMMANDS = [
    pytest.param(repeats, command, id=f"{name}-{i}")
    for name, samples in OPERATIONS.items()
    for i, (repeats, command) in enumerate(samples)
]


def test_every_operation_is_in_the_table_and_every_script_is_called_by_one() -> None:
    modules: list[ModuleType] = [
        worker_commands,
        job_commands,
        queue_commands,
        enqueue_commands,
        schedule_commands,
        fsck_commands,
    ]
    operations = {
        f"{module.__name__.rpartition('.')[2]}.{name}"
        for module in modules
        for name, function in introspection.getmembers(module, introspection.isfunction)
        if not name.startswith("_")
        and "__mutmut_" not in name  # the copies of a function that `make mutants-python` makes
        and function.__module__ == module.__name__
        and str(function.__annotations__["return"]).startswith("Command[")
    }
    assert operations == set(OPERATIONS)
    called = {command.script for samples in OPERATIONS.values() for _, command in samples}
    assert called == set(names())


@pytest.mark.parametrize(("repeats", "command"), COMMANDS)
def test_an_operation_sends_what_the_header_asks_for(repeats: int, command: Command[Any]) -> None:
    script = load(command.script)
    keys: Keys = keys_of(None) if set(script.keys) <= {*GLOBAL} else MAIL
    if script.name == "enqueue" and repeats == 1:  # these jobs have one priority
        needed = script.keys[: script.keys.index("due")]
        assert command.keys == (*keys.of(needed), "bide:{mail}:due:5")
    else:
        assert command.keys == keys.of(script.keys)
    wanted = len(script.args) + repeats * len(script.rest)
    is_check = script.name == "enqueue" and not repeats  # whether the server can confirm
    assert len(command.args) == wanted + bool(command.confirm or is_check)
    kinds = [text.split()[1] for text in tagged(script, "arg")]
    for value, kind in zip(command.args, kinds, strict=False):
        assert (type(value) is int) == (kind == "integer"), (value, kind)


@pytest.mark.slow
@pytest.mark.parametrize(("repeats", "command"), COMMANDS)
def test_an_argument_of_the_wrong_kind_is_refused_before_anything_is_written(
    repeats: int, command: Command[Any], one_url: str, direct: redis.Redis
) -> None:
    script = load(command.script)
    client = blocking.Client(one_url)
    wrong: list[list[Any]] = [
        [*command.args[:i], "x", *command.args[i + 1 :]]
        for i, text in enumerate(tagged(script, "arg"))
        if text.split()[1] == "integer"
    ]
    if script.rest:
        wrong += [[*command.args, "x"]] if len(script.rest) > 1 else []
    if script.args:
        wrong.append(list(command.args[: len(script.args) - 1]))
    for args in wrong:
        with pytest.raises(ScriptBug, match=f"BADARG {script.name}"):
            client.run(command._replace(args=args))
    assert direct.keys() == []
    client.close()


@pytest.mark.parametrize("clock", [SERVER_CLOCK, TEST_CLOCK, SHARED_CLOCK])
def test_the_server_knows_each_script_by_the_sha_that_we_send(
    clock: str, direct: redis.Redis
) -> None:
    for name in names():
        script = load(name, clock)
        assert direct.script_load(script.text) == script.sha


@every_script
def test_the_clock_under_test_differs_in_nothing_but_the_clock(name: str) -> None:
    plain, testing = load(name), load(name, TEST_CLOCK)
    of_test = "local now = (function()\n" + source("include/clock_testing.lua") + "end)()"
    assert testing.text.replace(of_test, scripts._NOW) == plain.text
    is_alike = "meta" not in plain.keys or scripts._NOW not in plain.text
    assert (testing.text == plain.text) == is_alike
