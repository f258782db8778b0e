"""Who listens to events holds their stream open, and goes on where it was."""

from __future__ import annotations

import pytest

from bide import ServerRefused
from bide.model.job import Event, follows
from tests.support.probe import Probe


def words(events: list[Event]) -> list[str]:
    """Kind, verb and job of each."""
    return [f"{e.kind} {e.verb} {e.job_id or '-'}" for e in events]


def test_without_a_read_for_ten_minutes_nothing_is_written_any_more(q: Probe) -> None:
    start = q.listen()
    q.add("a")
    q.move(600)
    q.add("b")
    assert words(q.told()) == ["added enqueue a", "added enqueue b"]
    q.move(61)
    q.add("c")
    assert len(q.told()) == 2
    back = q.listen(start.after)
    assert back.gap
    assert q.told() == []
    q.add("d")
    (event,) = q.told()
    assert follows(event.id, back.after)
    assert event.id.partition("-")[0] != start.after.partition("-")[0]


def test_the_server_itself_removes_a_stream_that_nobody_holds_open(q: Probe) -> None:
    q.listen(seconds=100)
    q.add("a")
    assert 0 < q.raw.pttl(q.keys["events"]) <= 100_000
    q.listen(seconds=200)
    assert 100_000 < q.raw.pttl(q.keys["events"]) <= 200_000
    q.add("b")
    assert q.raw.pttl(q.keys["events"]) > 100_000


def test_a_listener_goes_on_where_it_was(q: Probe) -> None:
    start = q.listen()
    q.add("a", "b", "c")
    assert q.listen(start.after) == start
    second = q.told()[1].id
    assert q.listen(second) == (second, False)
    last = q.told()[2].id
    assert q.listen(last) == (last, False)
    assert q.listen() == (last, False), "what happens next"


def test_several_hold_it_open_until_the_last_has_left(q: Probe) -> None:
    q.listen(name="one", seconds=10)
    start = q.listen(name="other", seconds=100)
    q.add("a")
    q.listen(name="other", seconds=0)
    assert q.zset("listeners").keys() == {"one"}
    q.add("b")
    assert len(q.told()) == 2
    assert q.listen(start.after, name="one") == start
    q.listen(name="one", seconds=0)
    assert not q.raw.exists(q.keys["events"], q.keys["listeners"])
    assert not {"listened", "told"} & q.holding().meta.keys()
    q.add("c")
    assert q.told() == []


def test_the_longest_hold_counts(q: Probe) -> None:
    q.listen(name="one", seconds=100)
    q.listen(name="other", seconds=10)
    q.move(50)
    q.add("a")
    assert words(q.told()) == ["added enqueue a"]
    q.listen(name="third", seconds=1)
    assert q.zset("listeners").keys() == {"one", "third"}


def test_so_many_listeners_are_remembered_and_of_more_how_long_they_listen(q: Probe) -> None:
    ends = {}
    for i in range(70):
        q.listen(name=f"n{i}", seconds=100 + i)
        ends[f"n{i}"] = q.zset("listeners")[f"n{i}"]
    known = q.zset("listeners")
    assert known.pop("{others}") == ends["n5"]
    assert known.keys() == {f"n{i}" for i in range(6, 70)}
    q.listen(name="n69", seconds=50)
    assert len(q.zset("listeners")) == 65


def test_one_that_is_away_is_not_driven_out_by_those_who_come_and_go(q: Probe) -> None:
    start = q.listen(name="audit")
    q.add("a")
    names = [f"n{i}" for i in range(70)]
    for name in names:
        q.listen(name=name, seconds=700)
    for name in names:
        q.listen(name=name, seconds=0)
    q.move(600)
    q.add("b")
    assert q.listen(start.after, name="audit") == start
    assert words(q.told()) == ["added enqueue a", "added enqueue b"]
    q.listen(name="audit", seconds=0)
    q.move(101)
    q.listen(name="n1", seconds=0)
    assert not q.raw.exists(q.keys["events"], q.keys["listeners"])


def test_events_that_are_missing_at_the_end_are_a_gap(q: Probe) -> None:
    start = q.listen()
    q.add("a", "b")
    q.raw.delete(q.keys["events"])
    assert q.listen(start.after).gap
    back = q.listen(start.after)
    assert (back.after, back.gap) == (start.after.replace("-0", "-2"), True)
    q.add("c")
    assert follows(q.told()[0].id, back.after)


def test_a_server_that_lost_its_latest_writes_gives_no_id_again(q: Probe) -> None:
    q.listen()
    q.add("a", "b", "c")
    read = q.told()[2].id
    q.raw.hset(q.keys["meta"], "told", 1)
    q.raw.xdel(q.keys["events"], *(e.id for e in q.told()[1:]))
    back = q.listen(read)
    assert back.gap
    assert back.after.partition("-")[0] != read.partition("-")[0]
    q.add("d")
    assert follows(q.told()[0].id, back.after)


def test_one_that_comes_back_to_another_stream_begins_with_its_first(q: Probe) -> None:
    start = q.listen()
    q.add("a")
    back = q.listen("1000-7", name="other")
    assert back == (start.after, True)
    assert follows(q.told()[0].id, back.after)


@pytest.mark.parametrize("id", ["{opened}-5000", "9{opened}-1", "1000-0"])
def test_an_entry_of_another_program_blocks_the_stream_until_the_next_read(
    q: Probe, id: str
) -> None:
    """Ids grow: behind it, events could not be written any more."""
    opened = q.listen().after.partition("-")[0]
    if not id.startswith("1000"):
        q.add("a")
    q.raw.xadd(q.keys["events"], {"any": "thing"}, id=id.format(opened=opened))
    back = q.listen(id.format(opened=opened))
    assert back.gap
    assert q.listen(back.after) == (back.after, False)
    q.add("b")
    (event,) = q.told()
    assert words([event]) == ["added enqueue b"]
    assert follows(event.id, back.after)


def test_another_programs_entry_before_the_first_is_no_place_to_begin(q: Probe) -> None:
    start = q.listen()
    q.raw.xadd(q.keys["events"], {"any": "thing"}, id="1000-0")
    q.add("a")
    assert q.listen("1000-7", name="other") == (start.after, True)


def test_another_programs_key_is_refused_and_not_removed(q: Probe) -> None:
    q.raw.set(q.keys["events"], "mine")
    with pytest.raises(ServerRefused, match="Another program uses keys"):
        q.listen()
    assert q.raw.get(q.keys["events"]) == b"mine"
    assert not q.raw.exists(q.keys["listeners"])
