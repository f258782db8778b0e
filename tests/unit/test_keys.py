"""Every key is named in one file, and all of one queue's share a hash tag."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bide.errors import UsageError
from bide.protocol.keys import DUE_SETS, GLOBAL, LAYOUT, PRIORITIES, Keys, check_priority, keys_of


def test_a_queues_keys_hang_on_its_hash_tag() -> None:
    keys = Keys("mail")
    assert keys["meta"] == "bide:{mail}"
    assert keys["jobs"] == "bide:{mail}:jobs"
    assert keys.names["due"][0] == "bide:{mail}:due:9"
    assert keys.names["due"][-1] == "bide:{mail}:due:grouped"
    for names in keys.names.values():
        assert all(re.findall(r"\{.*?\}", name) == ["{mail}"] for name in names)


def test_no_two_names_share_a_key() -> None:
    every = [key for names in Keys("mail").names.values() for key in names]
    every += [key for names in Keys(None).names.values() for key in names]
    assert len(set(every)) == len(every)


def test_no_queue_can_take_the_name_of_another_ones_key() -> None:
    mail = {key for names in Keys("mail").names.values() for key in names}
    for name in ("mail:jobs", "queues", "workers", "mail:due:9"):
        other = {key for names in Keys(name).names.values() for key in names}
        assert not other & mail
        assert not other & {key for names in Keys(None).names.values() for key in names}


def test_a_prefix_separates() -> None:
    assert Keys("mail", "staging")["jobs"] == "staging:{mail}:jobs"
    assert Keys(None, "staging")["queues"] == "staging:queues"


def test_due_sets_stand_in_the_order_of_a_claim() -> None:
    assert (*"9876543210", "alone", "unserved", "grouped") == DUE_SETS
    assert len(DUE_SETS) == PRIORITIES + 3


def test_a_script_gets_its_keys_in_the_order_of_its_header() -> None:
    keys = Keys("mail")
    assert keys.of(("wake", "meta")) == ("bide:{mail}:wake", "bide:{mail}")
    assert keys.of(("due", "jobs")) == (*keys.names["due"], "bide:{mail}:jobs")
    assert len(keys.of(("due",))) == len(DUE_SETS)


def test_a_name_for_several_keys_is_not_taken_for_one() -> None:
    with pytest.raises(ValueError, match="unpack"):
        Keys("mail")["due"]


@pytest.mark.parametrize("name", ["", "a b", "{mail}", "mail}", "a\n", "x" * 129])
def test_names_that_would_break_a_key_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"^queue name"):
        Keys(name)
    with pytest.raises(UsageError, match=r"^prefix"):
        Keys("mail", name)
    with pytest.raises(UsageError, match=r"^prefix"):
        Keys(None, name)


def test_every_key_says_what_it_holds() -> None:
    for key in (*LAYOUT.values(), *GLOBAL.values()):
        assert key.type in ("hash", "zset", "list", "stream", "any")
        assert key.holds
        assert ("<p>" in key.suffix) == bool(key.fan)


def test_the_same_queue_has_the_same_keys_object() -> None:
    assert keys_of("mail") is keys_of("mail")
    assert keys_of("mail") is not keys_of("mail", "staging")


def test_a_priority_is_one_of_ten_whole_numbers() -> None:
    assert [check_priority(p) for p in range(PRIORITIES)] == list(range(PRIORITIES))
    assert check_priority(None) == 5
    odd: list[Any] = [-1, 10, 5.0, True, "5", [5], float("nan")]
    for priority in odd:
        with pytest.raises(UsageError, match="must be an integer from 0 to 9"):
            check_priority(priority)
