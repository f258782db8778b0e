"""Ids are made in order and never twice; names are fit to be parts of keys."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bide.errors import UsageError
from bide.model import ids
from bide.model.ids import ID_LENGTH, LONGEST, check_name, is_name, made_us, new_id, short_id

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"


def test_an_id_is_twenty_characters_that_a_key_may_hold() -> None:
    id = new_id()
    assert len(id) == ID_LENGTH == 20
    assert set(id) <= set(ALPHABET)
    assert check_name(id, "job_id") == id


def test_ids_sort_as_they_were_made() -> None:
    made = [new_id() for _ in range(20_000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)


def time_in(id: str) -> int:
    """The time in an id, in eighths of a microsecond."""
    n = 0
    for char in id[:11]:
        n = n * 32 + ALPHABET.index(char)
    return n


def made_at(id: str) -> int:
    """The microseconds in an id."""
    return time_in(id) // 8


def test_an_id_tells_when_it_was_made() -> None:
    before = time.time_ns() // 1000
    id = new_id()
    at = made_at(id)
    assert made_us(id) == at
    assert before <= at <= time.time_ns() // 1000 + 30_000_000, "a crowd of ids runs ahead a little"


@pytest.mark.parametrize(
    "id",
    [
        "",
        "order-42",
        "user-7@example.com",
        "0" * 20,  # in 1970
        "z" * 20,  # in 2112
        "ILOU" * 5,
        # Names of their own: the processes of a test run must agree on them.
        pytest.param(new_id()[1:], id="shorter"),
        pytest.param(new_id() + "0", id="longer"),
        pytest.param(new_id().upper(), id="upper"),
    ],
)
def test_an_id_of_a_caller_s_own_tells_no_time(id: str) -> None:
    assert made_us(id) is None


@given(st.integers(125, 2 * 10**18))
def test_the_time_in_an_id_is_written_whole(later_ns: int) -> None:
    """Also where its upper letters are as they were for the id before, or all new."""
    began_ns = time.time_ns() + 10**9 * 60
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids, "_last", 0)
        for now_ns in (began_ns, began_ns + later_ns):
            patch.setattr(time, "time_ns", lambda now=now_ns: now)
            assert time_in(new_id()) == now_ns // 125


def test_ids_grow_even_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    first = new_id()
    monkeypatch.setattr(time, "time_ns", lambda: 1_000_000_000)
    second, third = new_id(), new_id()
    assert first < second < third


FORKS = """
import ctypes, os
from bide.model import ids
ids.new_id()  # some numbers are drawn ahead
child = {fork}
if child:
    os.waitpid(child, 0)
print(ids.new_id())
"""

FORKS_WITH_A_THREAD = """
import os, threading
from bide.model import ids
holds = threading.Thread(target=ids._lock.acquire)
holds.start()
holds.join()
if child := os.fork():
    os.waitpid(child, 0)
else:
    print(ids.new_id())
"""


def printed(program: str) -> list[str]:
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=90)
    return done.stdout.split()


@pytest.mark.slow
@pytest.mark.parametrize("fork", ["os.fork()", "ctypes.CDLL(None).fork()"])
def test_a_child_does_not_draw_what_its_parent_draws(fork: str) -> None:
    """However it was forked: servers that are written in C may not tell the interpreter."""
    random = slice(-9, None)  # what stands before is the time
    one, other = (id[random] for id in printed(FORKS.format(fork=fork)))
    assert one != other


def test_a_child_waits_for_no_thread_of_its_parent() -> None:
    assert len(printed(FORKS_WITH_A_THREAD)) == 1


def test_a_signals_handler_may_make_an_id_while_one_is_made() -> None:
    with ids._lock:
        new_id()


def test_threads_never_make_the_same_id() -> None:
    made: list[list[str]] = [[] for _ in range(8)]
    start = threading.Barrier(8)

    def make(into: list[str]) -> None:
        start.wait()
        into += [new_id() for _ in range(2_000)]

    threads = [threading.Thread(target=make, args=(into,)) for into in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = [id for ids in made for id in ids]
    assert len({id[:11] for id in together}) == len(together), "by their times, and not by chance"
    assert all(ids == sorted(ids) for ids in made)


def test_two_processes_differ_by_chance() -> None:
    assert len({new_id()[11:] for _ in range(1000)}) == 1000


# -- names


@pytest.mark.parametrize(
    "name", ["a", "mail", "order-42", "eu/west:1_2.3", "größe", "任务", "a" * 128]
)
def test_names_that_may_be(name: str) -> None:
    assert check_name(name, "queue name") == name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "non-empty string"),
        (None, "non-empty string"),
        (42, "non-empty string"),
        (b"mail", "non-empty string"),
        ("a b", "a brace, a space or a control character"),
        ("{a}", "a brace"),
        ("a}", "a brace"),
        ("a\n", "a control character"),
        ("a\x00b", "a control character"),
        ("a\x1b[31m", "a control character"),
        ("a\u2028b", "a control character"),
        ("a\u00a0b", "a control character"),
        ("\ud800", "a control character"),
        ("a" * 129, "longer than 128 bytes"),
        ("ß" * 65, "longer than 128 bytes"),
    ],
)
def test_names_that_may_not_be(name: Any, reason: str) -> None:
    with pytest.raises(UsageError, match=rf"^queue name .*{reason}"):
        check_name(name, "queue name")


@given(st.text())
def test_any_text_is_a_name_or_a_usage_error(text: str) -> None:
    complaint = ""
    try:
        check_name(text, "job_id")
    except UsageError as error:
        complaint = str(error)
    if complaint:
        assert len(complaint) < 1000, "what is refused is not printed at length"
        assert complaint.isprintable()
    else:
        assert len(text.encode()) <= LONGEST
        assert not set(text.encode()) & set(b"{} \t\r\n\x00")
        assert text.split() == [text], "a script may list names with a space between"


def test_an_id_is_shown_whole_up_to_the_longest_that_a_caller_may_choose() -> None:
    assert short_id("x" * LONGEST) == "x" * LONGEST
    assert short_id("x" * (LONGEST + 1)) == "x" * LONGEST + "…"


def test_a_name_that_was_read_is_checked_without_an_error() -> None:
    assert is_name("orders")
    assert not any(map(is_name, ["", "with space", "a{b}", "x" * (LONGEST + 1), "\udcff"]))
