"""Keys, and what a signature says of stored bytes."""

from __future__ import annotations

import hashlib
import hmac

import pytest

from bide.client import config
from bide.errors import BadSignature, UsageError
from bide.model.payload.body import (
    Body,
    decode_body,
    decode_item,
    decode_result,
    encode_body,
    encode_item,
    encode_result,
    is_item,
)
from bide.model.payload.serializers import frame
from bide.model.payload.signing import Keyring, Seal, is_signed, unsigned
from bide.protocol.commands.enqueue import prepare
from bide.protocol.keys import keys_of
from bide.queue import core

ONE, TWO = "1" * 32, "2" * 40
MAIL = keys_of("mail")
BODY = encode_body(Body("app.tasks:send", [42]))


def seal(text: str = f"one:{ONE}", queue: str = "mail", prefix: str = "bide") -> Seal:
    return Seal(Keyring(text), keys_of(queue, prefix))


def test_jobs_are_copied_only_to_be_signed() -> None:
    """Without a key, a copy of each would be for nothing."""
    jobs = [prepare(Body("app.tasks:send", (42,)))]
    assert core.signed(jobs, Seal(None, MAIL)) is jobs
    (one,) = core.signed(jobs, seal())
    assert seal().check("job", one.id, one.body)


@pytest.mark.parametrize("codec", ["json", "msgpack", "pickle"])
def test_what_is_signed_is_what_it_was(codec: str) -> None:
    body = Body("app.tasks:send", (42, b"\n\x04" if codec != "json" else ""), codec=codec)  # type: ignore[arg-type]
    data = encode_body(body)
    signed = seal().sign("job", "a", data)
    assert seal().check("job", "a", signed)
    assert (unsigned(signed), unsigned(data)) == (data, data)
    assert (is_signed(signed), is_signed(data)) == (True, False)
    read = decode_body(signed, allow_pickle=True)
    assert (read.task, tuple(read.args)) == (body.task, body.args)


def test_items_and_results_too() -> None:
    item = seal().sign("item", "a", encode_item({"user": 1}))
    assert (is_item(item), decode_item(item)) == (True, {"user": 1})
    result = seal().sign("result", "a", encode_result("t", {1: 2}, "pickle"))
    assert decode_result(result, allow_pickle=True) == {1: 2}


def test_a_signature_is_what_the_page_says() -> None:
    """Programs in other languages make it so."""
    signed = seal().sign("job", "n1", BODY)
    text = b"bide-job-1\nbide\nmail\nn1\n" + BODY
    digest = hmac.new(ONE.encode(), text, hashlib.sha256).hexdigest()
    assert signed == BODY + b"\n\x04 one " + digest.encode()


def test_without_keys_nothing_is_signed_and_nothing_refused() -> None:
    none = Seal(None, MAIL)
    assert none.sign("job", "a", BODY) == BODY
    assert none.check("job", "a", BODY) is False
    assert none.check("job", "a", seal().sign("job", "b", BODY)) is False


@pytest.mark.parametrize(
    ("other", "kind", "id"),
    [
        (seal(), "job", "b"),
        (seal(), "item", "a"),
        (seal(), "result", "a"),
        (seal(queue="low"), "job", "a"),
        (seal(prefix="staging"), "job", "a"),
        (seal(f"one:{TWO}"), "job", "a"),
    ],
    ids=["id", "item", "result", "queue", "prefix", "secret"],
)
def test_it_is_good_for_nothing_else(other: Seal, kind: str, id: str) -> None:
    signed = seal().sign("job", "a", BODY)
    with pytest.raises(BadSignature, match="has been changed since it was signed"):
        other.check(kind, id, signed)  # type: ignore[arg-type]


def test_no_part_of_it_can_be_changed() -> None:
    signed = seal().sign("job", "a", BODY)
    for i in range(len(signed)):
        changed = signed[:i] + bytes([signed[i] ^ 1]) + signed[i + 1 :]
        with pytest.raises(BadSignature):
            seal().check("job", "a", changed)
        with pytest.raises(BadSignature):
            seal().check("job", "a", signed[:i])
    for more in (b" ", b"\n", b"0"):
        with pytest.raises(BadSignature):
            seal().check("job", "a", signed + more)


def test_parts_cannot_pass_for_one_another() -> None:
    """Another program may make an id of any bytes."""
    signed = seal().sign("job", "a", b"b\nbody")
    digest = signed[len(b"b\nbody") :]
    with pytest.raises(BadSignature):
        seal().check("job", "a\nb", b"body" + digest)


def test_what_bears_no_signature_is_refused_unless_that_was_said() -> None:
    with pytest.raises(BadSignature, match="has no signature"):
        seal().check("job", "a", BODY)
    lenient = seal(f"one:{ONE},unsigned")
    assert lenient.check("job", "a", BODY) is False
    assert lenient.check("job", "a", lenient.sign("job", "a", BODY))
    with pytest.raises(BadSignature):
        lenient.check("job", "a", lenient.sign("job", "b", BODY))


def test_keys_are_rotated_by_adding_the_new_one_behind_then_in_front_then_dropping_the_old() -> (
    None
):
    old, both, turned, new = (
        seal(text) for text in (f"a:{ONE}", f"a:{ONE},b:{TWO}", f"b:{TWO},a:{ONE}", f"b:{TWO}")
    )
    steps = [(old, both), (both, both), (both, turned), (turned, turned), (turned, new)]
    for signer, checker in steps:
        first, second = signer.sign("job", "x", BODY), checker.sign("job", "x", BODY)
        if (signer, checker) != (turned, new):
            assert signer.check("job", "x", second)
            assert checker.check("job", "x", first)
    assert new.check("job", "x", turned.sign("job", "x", BODY))
    with pytest.raises(
        BadSignature, match=r"the key 'a', which this process does not have; add it to"
    ):
        new.check("job", "x", old.sign("job", "x", BODY))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Key 1 .* is invalid"),
        ("unsigned", "holds no key"),
        ("one", "Key 1 .* is invalid"),
        (f"one:{ONE[1:]}", "32 characters or more"),
        (f"o ne:{ONE}", "is invalid"),
        (f"one:{ONE},one:{TWO}", "Key 2 .* repeats an id"),
        (f"one:{ONE},two:{ONE} {TWO}", "Key 2 .* is invalid"),
        (f"{'x' * 33}:{ONE}", "is invalid"),
    ],
)
def test_keys_that_cannot_be_meant_are_refused_and_not_shown(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as refused:
        Keyring(text)
    assert ONE[1:] not in str(refused.value)


def test_no_secret_is_shown() -> None:
    ring = Keyring(f"one:{ONE},two:{TWO}")
    told = f"{ring!r} {ring} {Seal(ring, MAIL)!r}"
    assert "one, two" in told
    assert ONE not in told
    assert TWO not in told


def test_verdicts_for_people() -> None:
    signed = seal().sign("job", "a", BODY)
    assert seal().verdict("job", "a", signed) == "good"
    assert seal().verdict("job", "b", signed) == "bad"
    assert seal().verdict("job", "a", BODY) == "none"
    assert Seal(None, MAIL).verdict("job", "a", signed) == "unchecked"


def test_keys_come_from_the_environment_and_an_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BIDE_SIGNING_KEYS", raising=False)
    assert config.signing_keys() is None
    for empty in ("", " "):  # a secret that was to be there, and is not, must not open the door
        monkeypatch.setenv("BIDE_SIGNING_KEYS", empty)
        with pytest.raises(UsageError, match="is empty"):
            config.signing_keys()
    monkeypatch.setenv("BIDE_SIGNING_KEYS", f"one:{ONE}")
    ring = config.signing_keys()
    assert ring is not None
    assert ring.text == f"one:{ONE}"
    with config.override(signing_keys=f"two:{TWO}"):
        assert "two" in repr(config.signing_keys())


def test_a_signature_of_a_deduplicated_call_is_good_for_any_job_and_for_nothing_else() -> None:
    signed = seal().sign("dedup", "", BODY)
    assert seal().check("job", "a", signed)
    assert seal().check("job", "b", signed)
    for kind in ("item", "result"):
        with pytest.raises(BadSignature):
            seal().check(kind, "a", signed)
    with pytest.raises(BadSignature):
        seal(queue="other").check("job", "a", signed)
    with pytest.raises(BadSignature):
        seal().check("dedup", "", seal().sign("job", "", BODY))


def test_each_call_that_was_batched_bears_its_own() -> None:
    signed, other = (seal().sign("dedup", "", body) for body in (BODY, BODY.replace(b"42", b"43")))
    assert seal().check("job", "a", frame(signed) + frame(other))
    unsigned_one = frame(signed) + frame(BODY)
    for odd in (unsigned_one, frame(signed) + frame(other.replace(b"43", b"44"))):
        with pytest.raises(BadSignature):
            seal().check("job", "a", odd)
    with pytest.raises(BadSignature):  # that of a job is good for that job alone
        seal().check("job", "a", frame(seal().sign("job", "a", BODY)))
    lenient = seal(f"one:{ONE},unsigned")
    assert lenient.check("job", "a", unsigned_one) is False, "no pickle is read of it"
    with pytest.raises(BadSignature):
        lenient.check("job", "a", frame(BODY) + frame(signed.replace(b"42", b"44")))
    spoilt = frame(signed)[:-1]
    told = [seal().verdict("job", "a", data) for data in (unsigned_one, frame(signed), spoilt)]
    assert told == ["none", "good", "bad"]
    with pytest.raises(BadSignature, match="cut off or damaged"):
        seal().check("job", "a", spoilt)
