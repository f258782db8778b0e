r"""Signatures: they prove that a producer with a key has enqueued this job on this queue.

The signature follows the signed data: a newline, the byte 4, the key's id, a space and 64
hexadecimal digits:

    {"task":"app.tasks:send","args":[42]}\n\x04 2026a 6f1d...

The digits are the HMAC-SHA256, with the key's secret, of five parts separated by newlines: the
kind, the prefix, the queue, the id, and the stored bytes, which contain task, arguments and
options:

    bide-job-1\nbide\nmail\n0n7...\n{"task":"app.tasks:send","args":[42]}

So a signature is valid only for one job of one queue. There are two exceptions, because the id is
not known at the time of signing:

- The jobs of a schedule share a body: `nightly@1795...` is valid if the body was signed as
  `bide-schedule-1` of `nightly`.
- A body that may replace another job's body, because calls are deduplicated (`bide.model.dedup`),
  is signed as `bide-dedup-1` without an id. It is valid for any job of its queue. In a batch, each
  call has its own signature.

A signature is checked before anything is decoded. Data without a signature are stored as they are,
so a process without keys reads both.
"""

from __future__ import annotations

import hmac
import re
from typing import Final, Literal, NamedTuple, Protocol

from bide.errors import BadSignature, PayloadError, UsageError
from bide.model.ids import short_id
from bide.model.payload.serializers import calls_in, is_batch

Kind = Literal["job", "dedup", "item", "result", "schedule"]
Verdict = Literal["good", "bad", "none", "unchecked"]

VARIABLE: Final = "BIDE_SIGNING_KEYS"
"""The environment variable that holds the keys."""

UNSIGNED: Final = "unsigned"
"""The word that permits unsigned data besides the keys, during a migration."""

SHORTEST: Final = 32
"""Minimum characters of a secret."""

_LONGEST_ID: Final = 32
_DIGITS: Final = 64
_MARK: Final = b"\n\x04"
_KEY: Final = re.compile(r"([A-Za-z0-9_-]{1,32}):([!-+\--~]+)")
_END: Final = re.compile(rb"\n\x04 ([A-Za-z0-9_-]{1,32}) ([0-9a-f]{64})\Z")
_LONGEST: Final = len(_MARK) + 1 + _LONGEST_ID + 1 + _DIGITS


class Keyring:
    """The keys of a process: the first one signs, and all of them are valid."""

    def __init__(self, text: str) -> None:
        """Parse keys: `2026b:SECRET,2026a:SECRET`, and optionally `unsigned`.

        Error messages contain no part of a secret.
        """
        self.text: Final = text
        """The original text of the keys; only for a child process."""
        self._secrets: Final[dict[str, bytes]] = {}
        words = [word.strip() for word in text.split(",")]
        self.takes_unsigned: Final = UNSIGNED in words
        for number, word in enumerate((word for word in words if word != UNSIGNED), 1):
            found = _KEY.fullmatch(word)
            if found is None or len(found[2]) < SHORTEST or found[1] in self._secrets:
                why = "repeats an id" if found and found[1] in self._secrets else "is invalid"
                raise UsageError(
                    f"Key {number} of ${VARIABLE} {why}; write ID:SECRET,ID:SECRET with different "
                    f"ids of letters and digits and secrets of {SHORTEST} characters or more, such "
                    "as `openssl rand -hex 32` prints."
                )
            self._secrets[found[1]] = found[2].encode()
        if not self._secrets:
            raise UsageError(f"${VARIABLE} holds no key; write ID:SECRET, or unset it.")
        self._first = next(iter(self._secrets))

    def __repr__(self) -> str:
        return f"<Keyring {', '.join(self._secrets)}>"

    def sign(self, text: bytes, data: bytes) -> bytes:
        """Return the signature that follows the data."""
        digest = hmac.digest(self._secrets[self._first], text + data, "sha256")
        return _MARK + f" {self._first} {digest.hex()}".encode()

    def secret(self, id: str) -> bytes | None:
        """Return the secret of a key; None for an unknown key."""
        return self._secrets.get(id)


class KeyNames(Protocol):
    """The names of a queue, as in its keys."""

    @property
    def prefix(self) -> str:
        """The prefix of the queue's keys."""
        ...

    @property
    def queue(self) -> str | None:
        """The queue's name."""
        ...


class Seal(NamedTuple):
    """Signs and checks the jobs of one queue; without keys it does neither."""

    keyring: Keyring | None
    keys: KeyNames

    def sign(self, kind: Kind, id: str, data: bytes) -> bytes:
        """Return the data, with their signature if there is a key."""
        if self.keyring is None:
            return data
        return data + self.keyring.sign(self._text(kind, id), data)

    def check(self, kind: Kind, id: str, data: bytes) -> bool:
        """Return whether one of our keys has signed this; False if it need not be signed.

        Raises:
            BadSignature: a required signature is missing, or belongs to other data, to another job
                or queue, or to an unknown key.
        """
        ring = self.keyring
        if ring is None:
            return False
        if kind == "job" and is_batch(data):
            checked = [self.check("dedup", id, call) for call in _calls_in(data)]
            return all(checked)
        found = _END.search(data, max(0, len(data) - _LONGEST))
        what = f"{kind} {short_id(id)!r} of queue {self.keys.queue!r}"
        if found is None:
            if ring.takes_unsigned:
                return False
            raise BadSignature(
                f"The {what} has no signature; give its producer the keys of ${VARIABLE}, and "
                f"let this worker accept {UNSIGNED} data until the old jobs have ended."
            )
        key = found[1].decode()
        secret = ring.secret(key)
        if secret is None:
            raise BadSignature(
                f"The {what} is signed with the key {key!r}, which this process does not have; "
                f"add it to "
                f"${VARIABLE}, and retry it."
            )
        texts = [self._text("dedup", "")] if kind in ("job", "dedup") else []
        if kind != "dedup" and "\n" not in id:
            texts.insert(0, self._text(kind, id))
            if kind == "job" and "@" in id:
                texts.append(self._text("schedule", id.rpartition("@")[0]))
        if not any(_is(secret, text + data[: found.start()], found[2]) for text in texts):
            raise BadSignature(
                f"The {what} has been changed since it was signed, or was signed as another one "
                "or for another queue; delete it, and find out who can write to the server."
            )
        return True

    def verdict(self, kind: Kind, id: str, data: bytes) -> Verdict:
        """Describe a signature for people."""
        if not is_signed(data):
            return "none"
        if self.keyring is None:
            return "unchecked"
        try:
            return "good" if self.check(kind, id, data) else "none"
        except BadSignature:
            return "bad"

    def _text(self, kind: Kind, id: str) -> bytes:
        head = f"bide-{kind}-1\n{self.keys.prefix}\n{self.keys.queue}\n{id}\n"
        return head.encode("utf-8", "surrogateescape")


def _calls_in(data: bytes) -> list[bytes]:
    """Split a batch into its calls; if that fails, no signature is valid."""
    try:
        return calls_in(data)
    except PayloadError as error:
        raise BadSignature(str(error)) from None


def _is(secret: bytes, text: bytes, digits: bytes) -> bool:
    return hmac.compare_digest(hmac.digest(secret, text, "sha256").hex().encode(), digits)


def is_signed(data: bytes) -> bool:
    """Whether the data end with a signature, valid or not."""
    if is_batch(data):
        try:
            return all(_end(call) < len(call) for call in _calls_in(data))
        except BadSignature:
            return True  # it has no valid signature
    return _end(data) < len(data)


def unsigned(data: bytes) -> bytes:
    """Return the data without their signature, if they have one."""
    end = _end(data)
    return data if end == len(data) else data[:end]


def _end(data: bytes) -> int:
    if is_batch(data):  # its calls have the signatures
        return len(data)
    if data[-_DIGITS - 1 : -_DIGITS] != b" ":  # quick: nearly all unsigned data end here
        return len(data)
    found = _END.search(data, max(0, len(data) - _LONGEST))
    return found.start() if found else len(data)
