"""Reads Lua well enough to say which names a chunk uses and which it declares."""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(
    r"""--\[\[.*?\]\] | --[^\n]*                      # comments
    | '(?:\\.|[^'\\\n])*' | "(?:\\.|[^"\\\n])*"       # strings
    | [A-Za-z_]\w* | \d+(?:\.\d+)?                    # names and keywords, numbers
    | \.\.\.? | [=~<>]= | \S                          # operators
    """,
    re.VERBOSE | re.DOTALL,
)
_KEYWORDS = """
and break do else elseif end false for function if in local nil not or repeat return then true
until while
""".split()  # noqa: SIM905
LIBRARY = """
KEYS ARGV redis string table math tonumber ipairs pairs next unpack
type pcall setmetatable
""".split()  # noqa: SIM905
"""What a script may use without declaring it."""


class Call(NamedTuple):
    """One `redis.call` or `redis.pcall`."""

    command: str
    key: tuple[str, ...]
    """The tokens of its first argument after the command."""

    @property
    def root(self) -> str:
        return self.key[0] if self.key else ""


def tokens(source: str) -> list[str]:
    """The tokens of a chunk, without its comments."""
    return [t for t in _TOKEN.findall(source) if not t.startswith("--")]


def calls(source: str) -> list[Call]:
    """Every `redis.call(...)` with a literal command."""
    found = []
    words = tokens(source)
    for i in range(len(words) - 4):
        if words[i : i + 2] != ["redis", "."] or words[i + 2] not in ("call", "pcall"):
            continue
        key: list[str] = []
        depth = 0
        for word in words[i + 6 :]:
            if depth == 0 and word in (",", ")"):
                break
            depth += (word in "([{") - (word in ")]}")
            key.append(word)
        found.append(Call(words[i + 4].strip("'\""), tuple(key)))
    return found


def names(source: str) -> list[str]:
    """Every name that is used or declared, fields and keys of tables excepted, in order."""
    words = ["", *tokens(source), ""]
    return [
        word
        for before, word, after in zip(words, words[1:], words[2:], strict=False)
        if re.fullmatch(r"[A-Za-z_]\w*", word)
        and word not in _KEYWORDS
        and before not in (".", ":")
        and not (before in ("{", ",") and after == "=")
    ]


def declared(source: str) -> set[str]:
    """Every name that a `local`, a `for` or a parameter list declares, in whatever scope."""
    words = tokens(source)
    found: set[str] = set()
    for i, word in enumerate(words):
        if word == "local" and words[i + 1] == "function":
            found.add(words[i + 2])
        elif word in ("local", "for"):
            found |= _list_from(words, i + 1)
        elif word == "function":
            found |= _list_from(words, words.index("(", i) + 1)
    return found


def undeclared(source: str) -> set[str]:
    """The names that a chunk takes from nowhere."""
    return set(names(source)) - declared(source) - {*LIBRARY}


def _list_from(words: list[str], i: int) -> set[str]:
    found = set()
    while re.fullmatch(r"[A-Za-z_]\w*", words[i]) and words[i] not in _KEYWORDS:
        found.add(words[i])
        if words[i + 1] != ",":
            break
        i += 2
    return found
