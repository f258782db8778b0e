"""Changes bytes in the ways in which programs, people and attackers get them wrong.

Every input is made from a seed, a target's name and a number: the same three make it again.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

NUMBERS = [
    b"0", b"-1", b"1", b"-0", b"1e999", b"1e-999", b"9223372036854775808", b"-9223372036854775809",
    b"18446744073709551616", b"9" * 400, b"NaN", b"Infinity", b"-Infinity", b"0x10", b"1_000",
    b"1795214038547684", b"253402300800000000", b"0.1", b"", b"null", b"\xd9\xa3",
]  # fmt: skip
PIECES = [
    b"\x00", b"\n", b"\r\n", b" ", b'"', b"\\", b"\x1b[2J", b"{", b"}", b"[", b"]", b",", b":",
    b"\x01", b"\x02", b"\x03", b"\x04", b"\n\x04 one ", b"\xff", b"\xc3", b"\xed\xa0\x80",
    b"\\ud800", b"\xe2\x80\xae", b"{{}}", b"%s%n", b"../", b"$(x)", b"[red]",
    b"cos\nsystem\n(S'x'\ntR.", b"[" * 3000, b'{"a":' * 2000, b"x" * 5000, b"(" * 500,
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 10**30, 0.5, "", "x" * 3000, "\x00", "\x1b[2J\r\n", "\u202e", [], {},
    [[]], {"": None}, {"a": {"a": {"a": 1}}}, "json", "pickle", "msgpack", 1e300, ["a"] * 200,
    "app.tasks:send", "os:system", "builtins:eval", "__import__", "a:b.c", ":",
]  # fmt: skip
ODD: list[Any] = [None, 0, -1, 10**30, b"", b"\xff", b"ok", [], [[]], "x", 0.5, True]
FIELDS = ["task", "args", "kwargs", "timeout", "retry", "keep", "meta", "codec", "on_success", ""]


class Mutator:
    """One input's way of going wrong."""

    def __init__(self, seed: str, target: str, number: int) -> None:
        self.random = random.Random(f"{seed}:{target}:{number}")

    def bytes(self, corpus: Sequence[bytes]) -> bytes:
        """One of these, changed once or a few times."""
        random = self.random
        data = random.choice(corpus)
        for _ in range(random.choice((1, 1, 1, 2, 3, 6))):
            data = random.choice(_WAYS)(self, data, corpus)
        return data[:200_000]

    def text(self, corpus: Sequence[str]) -> str:
        """The same for text; of bytes that are none, what a command line makes of them."""
        return self.bytes([one.encode() for one in corpus]).decode("utf-8", "surrogateescape")

    def value(self, value: Any) -> Any:
        """A plain value with something else somewhere in it."""
        random = self.random
        if isinstance(value, dict) and value and random.random() < 0.8:
            changed = dict(value)
            key = random.choice([*changed])
            way = random.random()
            if way < 0.15:
                del changed[key]
            elif way < 0.3:
                changed[random.choice(FIELDS)] = random.choice(VALUES)
            else:
                changed[key] = self.value(changed[key])
            return changed
        if isinstance(value, list) and value and random.random() < 0.8:
            listed = list(value)
            i = random.randrange(len(listed))
            way = random.random()
            if way < 0.15:
                del listed[i]
            elif way < 0.3:
                listed.insert(i, random.choice(VALUES))
            else:
                listed[i] = self.value(listed[i])
            return listed
        return random.choice(VALUES)

    def reply(self, reply: Any) -> Any:
        """A server's reply with something else somewhere in it."""
        random = self.random
        if isinstance(reply, list) and reply and random.random() < 0.9:
            listed = list(reply)
            i = random.randrange(len(listed))
            way = random.random()
            if way < 0.2:
                del listed[i]
            elif way < 0.4:
                listed.insert(
                    i, random.choice([None, 0, -1, 10**30, b"", b"x", [], [[]], "x", 0.5])
                )
            else:
                listed[i] = self.reply(listed[i])
            return listed
        if isinstance(reply, bytes) and random.random() < 0.7:
            return self.bytes([reply])
        return random.choice(ODD)


Way = Callable[[Mutator, bytes, Sequence[bytes]], bytes]


def _place(self: Mutator, data: bytes) -> tuple[int, int]:
    start = self.random.randrange(len(data) + 1)
    return start, min(len(data), start + self.random.choice((1, 1, 2, 4, 16, 64)))


def _flip(self: Mutator, data: bytes, corpus: Sequence[bytes]) -> bytes:
    if not data:
        return b"\x00"
    i = self.random.randrange(len(data))
    return data[:i] + bytes([data[i] ^ 1 << self.random.randrange(8)]) + data[i + 1 :]


def _cut(self: Mutator, data: bytes, corpus: Sequence[bytes]) -> bytes:
    start, end = _place(self, data)
    return data[:start] if self.random.random() < 0.3 else data[:start] + data[end:]


def _double(self: Mutator, data: bytes, corpus: Sequence[bytes]) -> bytes:
    start, end = _place(self, data)
    return data[:end] + data[start:end] * self.random.choice((1, 1, 2, 50)) + data[end:]


def _insert(self: Mutator, data: bytes, corpus: Sequence[bytes]) -> bytes:
    start, end = _place(self, data)
    over = end if self.random.random() < 0.5 else start
    return data[:start] + self.random.choice(PIECES) + data[over:]


def _noise(self: Mutator, data: bytes, corpus: Sequence[bytes]) -> bytes:
    start, end = _place(self, data)
    return data[:start] + self.random.randbytes(self.random.choice((1, 4, 16))) + data[end:]


def _splice(self: Mutator, data: bytes, corpus: Sequence[bytes]) -> bytes:
    other = self.random.choice(corpus)
    return data[: _place(self, data)[0]] + other[_place(self, other)[0] :]


def _number(self: Mutator, data: bytes, corpus: Sequence[bytes]) -> bytes:
    found = [*re.finditer(rb"-?\d+(\.\d+)?", data)]
    if not found:
        return _insert(self, data, corpus)
    at = self.random.choice(found)
    return data[: at.start()] + self.random.choice(NUMBERS) + data[at.end() :]


def _json(self: Mutator, data: bytes, corpus: Sequence[bytes]) -> bytes:
    head, newline, rest = data.partition(b"\n")
    mark = head[:1] if head[:1] in (b"\x01", b"\x02", b"\x03") else b""
    try:
        value = json.loads(head[len(mark) :])
    except (ValueError, RecursionError):
        return _flip(self, data, corpus)
    try:
        text = json.dumps(self.value(value), separators=(",", ":"), ensure_ascii=False)
    except (ValueError, RecursionError):
        return data
    return mark + text.encode("utf-8", "surrogatepass") + newline + rest


_WAYS: list[Way] = [_flip, _cut, _double, _insert, _noise, _splice, _number, _json, _json, _json]
