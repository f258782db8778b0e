"""Scripts: the Lua files of `bide/protocol/lua`, assembled from their headers, content-addressed.

A file opens with a header, and the header is the contract:

    -- cancel: one sentence that says what the script does.
    -- @key  due        removes each job         (a name of `bide.protocol.keys`)
    -- @arg  lease_us   integer                  how long, in words
    -- @arg  worker     text
    -- @rest id token                            what repeats after the fixed arguments
    -- @last wanted                              text that may stand behind all of these, else ''
    -- @reply ok ...
    -- @include clock wakeup
    -- @later group deps                         the same, for what few calls need

From it the loader makes the script's locals: one per key (a table where the name stands for
several), one per argument, checked and converted before the first write, and `rest`, the index of
the first repeating argument. `@last` is for what callers of an earlier text know nothing of. So
header, caller and locals cannot disagree. An included file is a chunk that returns a table of
functions, which take all they use as parameters; one that comes `@later` is run when it is first
used.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import resources
from typing import Final

import msgspec

from bide.protocol.keys import GLOBAL, LAYOUT, SCHEMA

SERVER_CLOCK: Final = "server"
TEST_CLOCK: Final = "testing"
"""One that a test can move, queue by queue."""
SHARED_CLOCK: Final = "shared"
"""One that a test can move for all queues of a prefix (`bide.testing`)."""

_LINE: Final = re.compile(r"-- @(key|arg|rest|last|reply|include|later)\s+(.*)")
_CHECKS: Final = {"integer": "tonumber(ARGV[{i}])", "text": "ARGV[{i}]"}

_TOO_OLD: Final = f"""\
do
  local schema = redis.call('HGET', meta, 'schema')
  if schema and (tonumber(schema) or 0) > {SCHEMA} then
    return redis.error_reply('SCHEMA ' .. schema .. ' ' .. meta)
  end
end"""
"""Every script of a queue refuses one that a newer release has laid out, before it touches it."""

_LATER: Final = """\
local later = {__index = function(self, name)
  local part = self['']()
  part.__index = part
  setmetatable(self, part)
  return part[name]
end}"""
"""Makes an included file's functions when one of them is first used.

A server keeps no functions from one call to the next: each call makes those that it includes, which
takes as long as several commands, and most calls need few of them.
"""


class Script(msgspec.Struct, frozen=True):
    """A script as it is sent: its text, its SHA-1, and the contract read from its header."""

    name: str
    text: str
    sha: str
    summary: str
    keys: tuple[str, ...]
    args: tuple[str, ...]
    rest: tuple[str, ...]
    last: str | None
    header: tuple[tuple[str, str], ...]

    @property
    def is_global(self) -> bool:
        """Whether it works on keys that no queue owns."""
        return all(key in GLOBAL for key in self.keys)


@cache
def load(name: str, clock: str = SERVER_CLOCK) -> Script:
    """Assemble a script.

    Args:
        name: the verb, which is also the file's name.
        clock: `SERVER_CLOCK`, `TEST_CLOCK` or `SHARED_CLOCK`.
    """
    source = _read(f"{name}.lua")
    lines = source.split("\n")
    end = next((i for i, line in enumerate(lines) if not line.startswith("--")), len(lines))
    header = [m.groups() for line in lines[:end] if (m := _LINE.match(line))]
    keys = tuple(text.split()[0] for tag, text in header if tag == "key")
    args = [text.split()[:2] for tag, text in header if tag == "arg"]
    rest = tuple(w for tag, text in header if tag == "rest" for w in text.split())
    last = next((text.split()[0] for tag, text in header if tag == "last"), None)
    prelude = [_key_locals(keys), *_arg_locals(name, args, len(rest), last)]
    if "meta" in keys:
        # What stands in place of `meta` may be of another type, which one script is to mend.
        prelude.append(_TOO_OLD.replace("call", "pcall") if name == "fsck_queue" else _TOO_OLD)
    for tag, text in header:
        if tag == "include":
            prelude += [_include(part, clock) for part in text.split()]
    later = [part for tag, text in header if tag == "later" for part in text.split()]
    if later:
        prelude += [_LATER, *map(_include_later, later)]
    text = "\n".join([*prelude, *lines[end:]])
    return Script(
        name=name,
        text=text,
        sha=hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest(),
        summary=lines[0].removeprefix(f"-- {name}: "),
        keys=keys,
        args=tuple(arg for arg, _ in args),
        rest=rest,
        last=last,
        header=tuple((tag, text) for tag, text in header),
    )


def names() -> list[str]:
    """The names of all scripts."""
    files = resources.files("bide.protocol").joinpath("lua").iterdir()
    return sorted(f.name.removesuffix(".lua") for f in files if f.name.endswith(".lua"))


@cache
def _read(path: str) -> str:
    return resources.files("bide.protocol").joinpath("lua", *path.split("/")).read_text("utf-8")


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


def _include(name: str, clock: str) -> str:
    text = f"local {name} = (function()\n{_read(f'include/{name}.lua')}end)()"
    if name == "clock" and clock != SERVER_CLOCK:
        text += f"\nclock.now = (function()\n{_read(f'include/clock_{clock}.lua')}end)()"
    return text


def _include_later(name: str) -> str:
    text = _read(f"include/{name}.lua")
    return f"local {name} = setmetatable({{[''] = function()\n{text}end}}, later)"
