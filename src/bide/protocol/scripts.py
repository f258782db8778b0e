"""Scripts: assembles the Lua files of `bide/protocol/lua` from their headers.

A file starts with a header, which is the contract of the script:

    -- cancel: one sentence about the effect of the script.
    -- @key  due run                             the first keys, where their order matters
    -- @arg  lease_us   integer                  how long, in words
    -- @arg  worker     text
    -- @rest id token                            what repeats after the fixed arguments
    -- @last wanted                              an optional last text, otherwise ''
    -- @reply ok ...
    -- @include wakeup run_record                parts that nearly each call needs

From the header, the loader creates the locals of the script: one for each key (a table if the name
stands for several keys), one for each argument, checked and converted before the first write,
`rest`, the index of the first repeating argument, and `now`, the server's time. `@last` is for an
argument that callers of an earlier text do not send. So header, caller and locals always agree.

The loader finds the keys of a script in its text: each name of `bide.protocol.keys` that the text
uses and does not declare. It finds the parts of a script in the same way. A part is a file of the
folder `include`: a chunk that returns a table of functions, in the same scope. A script also has
the keys of its parts, and after its own arguments those in the headers of its parts. A part is
created when it is first used, or immediately after `@include`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import Final

import msgspec

from bide.protocol.keys import GLOBAL, LAYOUT, SCHEMA

SERVER_CLOCK: Final = "server"
TEST_CLOCK: Final = "testing"
"""A clock that a test can move, queue by queue."""
SHARED_CLOCK: Final = "shared"
"""A clock that a test can move for all queues of a prefix (`bide.testing`)."""

_LINE: Final = re.compile(r"-- @(key|arg|rest|last|reply|include)\s+(.*)")
_CHECKS: Final = {"integer": "tonumber(ARGV[{i}])", "text": "ARGV[{i}]"}

_QUIET: Final = re.compile(r"--[^\n]*|'(?:\\.|[^'\\\n])*'")
_NAME: Final = re.compile(r"(?<![\w.])([a-z_]+)\b(?! = )")
_INDEXED: Final = re.compile(r"(?<![\w.])[a-z_]++(?=\.\w|\[)")
_DECLARED: Final = re.compile(
    r"\b(?:local(?: function)?|for)\s+(\w+(?:,\s*\w+)*)|\bfunction[ \w.]*\(([^)]*)"
)

_TOO_OLD: Final = f"""\
do
  local schema = redis.call('HGET', meta, 'schema')
  if schema and (tonumber(schema) or 0) > {SCHEMA} then
    return redis.error_reply('SCHEMA ' .. schema .. ' ' .. meta)
  end
end"""
"""The check with which every script of a queue refuses the schema of a newer release."""

_NOW_USED: Final = re.compile(r"\bnow\b")
_NOW: Final = """\
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]"""

_LATER: Final = """\
included = setmetatable({{}}, {{__index = function(self, name)
  local made
{choice}  end
  self[name] = made
  return made
end}})"""
"""Creates the functions of a part when one of them is first used. A server keeps no functions
between calls. To create the functions of a part takes as long as several commands, and most calls
need few of them.
"""


class Script(msgspec.Struct, frozen=True):
    """A script as it is sent: its text, its SHA-1, and the contract from its header."""

    name: str
    text: str
    sha: str
    summary: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    rest: tuple[str, ...]
    last: str | None
    header: tuple[tuple[str, str], ...]


@cache
def load(name: str, clock: str = SERVER_CLOCK) -> Script:
    """Assemble a script.

    Args:
        name: the verb, which is also the file's name.
        clock: `SERVER_CLOCK`, `TEST_CLOCK` or `SHARED_CLOCK`.
    """
    path = f"{name}.lua"
    own, body = _split(path)
    at_once = _words(own, "include")
    parts = _parts(body, at_once)
    texts = {part: _read(f"include/{part}.lua") for part in parts}
    header = [*own]
    for part in parts:
        header += _split(f"include/{part}.lua")[0]
    args = [text.split()[:2] for tag, text in header if tag == "arg"]
    keys = _keys(_words(own, "key"), {arg for arg, _ in args}, body, texts.values())
    rest = tuple(_words(own, "rest"))
    last = next((text.split()[0] for tag, text in own if tag == "last"), None)
    prelude = [_key_locals(keys), *_arg_locals(name, args, len(rest), last)]
    if "meta" in keys:
        # The key `meta` may have a wrong type, which one script repairs.
        prelude.append(_TOO_OLD.replace("call", "pcall") if name == "fsck_queue" else _TOO_OLD)
    if any(map(_NOW_USED.search, (body, *texts.values()))):
        prelude.append(_now(clock if "meta" in keys else SERVER_CLOCK))
    if "event" in parts:
        prelude.append("local book")  # where its entries are collected, while there is a listener
    text = "\n".join([*prelude, *_with_parts(body, texts, at_once)])
    return Script(
        name=name,
        text=text,
        sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(),
        summary=_read(path).partition("\n")[0].removeprefix(f"-- {name}: "),
        keys=keys,
        args=tuple(arg for arg, _ in args),
        rest=rest,
        last=last,
        header=tuple(header),
    )


def names() -> list[str]:
    """Return the names of all scripts."""
    files = resources.files("bide.protocol").joinpath("lua").iterdir()
    return sorted(f.name.removesuffix(".lua") for f in files if f.name.endswith(".lua"))


@cache
def _read(path: str) -> str:
    return resources.files("bide.protocol").joinpath("lua", *path.split("/")).read_text("utf-8")


def _split(path: str) -> tuple[tuple[tuple[str, str], ...], str]:
    lines = _read(path).split("\n")
    end = next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))
    header = tuple((m[1], m[2]) for m in map(_LINE.match, lines[:end]) if m)
    return header, "\n".join(lines[end:])


def _words(header: Sequence[tuple[str, str]], tag: str) -> list[str]:
    return [word for each, text in header if each == tag for word in text.split()]


def _parts(body: str, at_once: Iterable[str] = ()) -> list[str]:
    """Return all parts that a script uses, directly or through other parts, each once."""
    parts = [*dict.fromkeys([*at_once, *_used(body)[1]])]
    for part in parts:  # the loop appends to it
        parts += [each for each in _used(_read(f"include/{part}.lua"))[1] if each not in parts]
    return parts


@cache
def _all_parts() -> frozenset[str]:
    folder = resources.files("bide.protocol").joinpath("lua", "include")
    return frozenset(file.name.removesuffix(".lua") for file in folder.iterdir())


@cache
def _used(text: str) -> tuple[frozenset[str], tuple[str, ...]]:
    """Return the names that a chunk uses and does not declare, and the parts among them."""
    text = _QUIET.sub("", text)
    declared = re.findall(r"\w+", " ".join(" ".join(m) for m in _DECLARED.findall(text)))
    used = frozenset(_NAME.findall(text)).difference(declared)
    return used, tuple(sorted(used & _all_parts()))


def _keys(
    first: Iterable[str], args: Iterable[str], body: str, parts: Iterable[str]
) -> tuple[str, ...]:
    """Return the keys that the texts use: first those of the header, then in the layout's order."""
    own = _used(body)[0]
    used = own.union(*(_used(text)[0] for text in parts)).difference(args)
    keys = dict.fromkeys([*first, *(key for key in LAYOUT | GLOBAL if key in used)])
    if "now" in own and not keys.keys() <= GLOBAL.keys():
        keys["meta"] = None  # reads the clock's offset under test
    return tuple(keys)


def _key_locals(keys: tuple[str, ...]) -> str:
    layout = LAYOUT | GLOBAL
    locals_, values, position = [], [], 1
    for name in keys:
        fan = len(layout[name].fan)
        locals_.append(name)
        last = position + fan - 1
        values.append(f"{{unpack(KEYS, {position}, {last})}}" if fan else f"KEYS[{position}]")
        position += fan or 1
    return f"local {', '.join(locals_)} = {', '.join(values)}"


def _arg_locals(name: str, args: list[list[str]], width: int, last: str | None) -> list[str]:
    lines = []
    if last:
        lines.append(
            f"local {last} = (#ARGV - {len(args)}) % {width} == 1 and table.remove(ARGV) or ''"
        )
    for i, (arg, kind) in enumerate(args, start=1):
        lines.append(f"local {arg} = {_CHECKS[kind].format(i=i)}")
        lines.append(f"if not {arg} then return redis.error_reply('BADARG {name} {arg}') end")
    if width:
        first = len(args) + 1
        lines.append(f"local rest = {first}")
        lines.append(f"if (#ARGV - {len(args)}) % {width} ~= 0 then")
        lines.append(f"  return redis.error_reply('BADARG {name} rest')")
        lines.append("end")
    return lines


def _now(clock: str) -> str:
    if clock == SERVER_CLOCK:
        return _NOW
    return f"local now = (function()\n{_read(f'include/clock_{clock}.lua')}end)()"


def _with_parts(body: str, texts: dict[str, str], at_once: list[str]) -> list[str]:
    """Return the parts that are created immediately, and those that are created on first use."""
    later = [name for name in texts if name not in at_once]

    def found(text: str, name: str = "") -> str:
        others = {*later} - {name}
        return _INDEXED.sub(lambda m: f"included.{m[0]}" if m[0] in others else m[0], text)

    lines = []
    if at_once or later:
        lines.append(f"local {', '.join([*at_once, *(['included'] if later else [])])}")
    if later:
        choice = "  else".join(
            f"if name == '{name}' then made = (function()\n{found(texts[name], name)}  end)()\n"
            for name in later
        )
        lines.append(_LATER.format(choice="  " + choice))
    lines += [f"{name} = (function()\n{found(texts[name])}end)()" for name in at_once]
    return [*lines, found(body)]
