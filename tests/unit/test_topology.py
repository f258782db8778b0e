"""Where calls go, driven by hand: which node is asked what, and what comes of its answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from redis import exceptions as lib

from bide.client.errors import unwrapped
from bide.client.execute import AfterCalls, Call, NoScript, Route, ToNode
from bide.client.topology import HOPS, NodeRequest, Topology, topology_for
from bide.errors import UsageError

URL = "redis+cluster://a:1,b:2"
A, B, C = "redis://a:1", "redis://b:2", "redis://c:3"
LOW, HIGH = "key2", "key1"
"""Keys of slots 4998 and 9189."""
SLOTS = [
    [0, 8000, [b"a", 1, b"id-a"], [b"c", 3, b"id-c"]],
    [8001, 16383, [b"b", 2, b"id-b"]],
]
MASTER = [b"a", b"1"]


class Driven:
    """Routes whose trips are answered by a function from node and calls."""

    def __init__(self, url: str) -> None:
        self.routes: Topology = topology_for(url)
        self.trips: list[NodeRequest] = []
        self.rounds: list[list[str]] = []
        """The nodes of trips that were made at a time."""

    def deliver(self, answers: Any, calls: Sequence[Call], routes: Sequence[Route]) -> Any:
        return self._drive(self.routes.deliver(calls, routes), answers)

    def locate(self, answers: Any, key: str) -> Any:
        return self._drive(self.routes.locate(key), answers)

    def asked(self, what: str) -> list[str]:
        """The nodes that were sent a call of this name."""
        return [trip.node for trip in self.trips for call in trip.calls if call[0] == what]

    def _drive(self, steps: Any, answers: Any) -> Any:
        self.trips, self.rounds = [], []
        try:
            trips = next(steps)
            while True:
                self.trips += trips
                self.rounds.append([trip.node for trip in trips])
                trips = steps.send([answers(trip.node, trip.calls) for trip in trips])
        except StopIteration as end:
            return end.value


@pytest.fixture
def cluster() -> Driven:
    return Driven(URL)


@pytest.fixture
def sentinels() -> Driven:
    return Driven("redis+sentinel://s:1,t:2/shop")


def echo(node: str, calls: list[Call]) -> list[Any]:
    """Every node has the same map, and answers with what it was asked."""
    return [SLOTS if call[0] == "CLUSTER" else (node, call[0]) for call in calls]


def but(**others: Any) -> Any:
    """`echo`, but for calls of a name, on node `a`, `b` or `c`: what a function makes of them."""

    def answer(node: str, calls: list[Call]) -> Any:
        replies: list[Any] = []
        for call, usual in zip(calls, echo(node, calls), strict=True):
            other = others.get(str(call[0]))
            reply = usual if other is None else other(node)
            if isinstance(reply, OSError | lib.ConnectionError | lib.TimeoutError):
                return reply
            replies.append(reply)
        return replies

    return answer


def on(where: str, error: Exception) -> Any:
    """An error from one node; from the others, their names."""
    return lambda node: error if node == where else node


# -- one server


def test_to_one_server_all_goes_in_one_round_trip() -> None:
    one = Driven("redis://a:1/2")
    assert one.deliver(echo, [("X",), ("Y",)], ["k", AfterCalls((0,))]) == [
        ("redis://a:1/2", "X"),
        ("redis://a:1/2", "Y"),
    ]
    assert len(one.trips) == 1


def test_and_what_breaks_it_is_said_as_it_is() -> None:
    gone = lib.ConnectionError("gone")
    assert Driven("redis://a:1").deliver(lambda *_: gone, [("X",)], ["k"]) is gone


# -- a Cluster: the map


def test_the_map_is_asked_for_once(cluster: Driven) -> None:
    assert cluster.deliver(echo, [("X",)], [LOW]) == [(A, "X")]
    assert len(cluster.asked("CLUSTER")) == 1
    assert cluster.deliver(echo, [("X",)], [HIGH]) == [(B, "X")]
    assert cluster.asked("CLUSTER") == []


def test_calls_are_split_by_node_and_their_replies_put_back_in_order(cluster: Driven) -> None:
    calls: list[Call] = [("U",), ("V",), ("W",), ("X",)]
    replies = cluster.deliver(echo, calls, [HIGH, LOW, LOW, HIGH])
    assert replies == [(B, "U"), (A, "V"), (A, "W"), (B, "X")]
    assert len(cluster.trips) == 3, "one for the map, and one a node"


def test_a_node_that_does_not_answer_is_asked_for_the_map_last(cluster: Driven) -> None:
    silent = but(CLUSTER=lambda node: OSError("no") if node == A else SLOTS)
    while A not in cluster.asked("CLUSTER"):  # the first is left to chance
        cluster.routes.doubt()
        cluster.deliver(silent, [("X",)], [HIGH])
    for _ in range(20):
        cluster.routes.doubt()
        assert cluster.deliver(silent, [("X",)], [HIGH]) == [(B, "X")]
        assert A not in cluster.asked("CLUSTER")


def test_nodes_that_may_all_hang_are_asked_together(cluster: Driven) -> None:
    """First one, then the others, those that were silent before last: so few time-outs in a row."""
    cluster.deliver(echo, [("X",)], [LOW])
    cluster.deliver(but(X=on(B, lib.TimeoutError("it hangs"))), [("X",)], [HIGH])
    cluster.deliver(lambda *_: lib.TimeoutError("they hang"), [("X",)], [LOW])
    one, other, silent, _ = cluster.rounds
    assert {*one, *other} == {A, C}
    assert silent == [B]
    cluster.deliver(lambda *_: lib.TimeoutError("they hang"), [("X",)], [LOW])
    all_of_them, _ = cluster.rounds
    assert sorted(all_of_them) == [A, B, C]


def test_if_none_answers_nothing_can_be_sent(cluster: Driven) -> None:
    gone = OSError("no")
    assert cluster.deliver(lambda *_: gone, [("X",)], [LOW]) is gone
    assert sorted(cluster.asked("CLUSTER")) == [A, B]


def test_but_what_was_known_is_still_tried(cluster: Driven) -> None:
    cluster.deliver(echo, [("X",)], [LOW])
    cluster.routes.doubt()
    deaf = but(CLUSTER=lambda _: lib.ResponseError("not now"))
    assert cluster.deliver(deaf, [("X",)], [LOW]) == [(A, "X")]


def test_a_slot_that_nobody_serves_is_a_thing_to_repeat(cluster: Driven) -> None:
    half = but(CLUSTER=lambda _: SLOTS[:1])
    first, second = cluster.deliver(half, [("X",), ("Y",)], [HIGH, LOW])
    assert isinstance(first, lib.ClusterDownError)
    assert second == (A, "Y")
    assert cluster.deliver(echo, [("X",)], [HIGH]) == [(B, "X")], "and the map is asked for again"


def test_a_server_that_is_no_node_is_told_apart(cluster: Driven) -> None:
    alone = but(CLUSTER=lambda _: lib.ResponseError("This instance has cluster support disabled"))
    assert isinstance(cluster.deliver(alone, [("X",)], [LOW]), UsageError)


# -- a Cluster: redirections


def test_moved_is_followed_at_once_and_remembered(cluster: Driven) -> None:
    moved = but(X=on(A, lib.MovedError("4998 c:3")))
    assert cluster.deliver(moved, [("X",)], [LOW]) == [C]
    assert cluster.asked("X") == [A, C]
    old = but(CLUSTER=lambda _: lib.ResponseError("not now"))
    assert cluster.deliver(old, [("X",)], [LOW]) == [(C, "X")]
    assert cluster.asked("CLUSTER"), "where one slot has gone, others may follow"


def test_ask_is_followed_once_behind_asking(cluster: Driven) -> None:
    ask = but(X=on(A, lib.AskError("4998 c:3")))
    assert cluster.deliver(ask, [("X",), ("Y",)], [LOW, LOW]) == [C, (A, "Y")]
    assert cluster.trips[-1] == NodeRequest(C, [("ASKING",), ("X",)])
    assert cluster.deliver(echo, [("X",)], [LOW]) == [(A, "X")]
    assert cluster.asked("CLUSTER") == []


def test_what_goes_with_a_call_goes_on_with_it(cluster: Driven) -> None:
    moved = but(X=on(A, lib.MovedError("4998 c:3")))
    calls: list[Call] = [("X",), ("WAIT",), ("Y",)]
    assert cluster.deliver(moved, calls, [LOW, AfterCalls((0,)), LOW]) == [C, (C, "WAIT"), (A, "Y")]
    assert cluster.trips[-1].calls == [("X",), ("WAIT",)]


def test_what_was_written_elsewhere_than_counted_is_to_be_repeated(cluster: Driven) -> None:
    """A slot moves between two calls of a round trip; the second, and its WAIT, follow it."""
    moved = but(Y=on(A, lib.MovedError("4998 c:3")))
    calls: list[Call] = [("X",), ("V",), ("Y",), ("WAIT",), ("Z",)]
    first, *others = cluster.deliver(moved, calls, [LOW, LOW, LOW, AfterCalls((0, 2)), LOW])
    assert isinstance(first, lib.TryAgainError)
    assert others == [(A, "V"), C, (C, "WAIT"), (A, "Z")]


def test_though_it_was_the_same_node_over_another_connection(cluster: Driven) -> None:
    back = iter([lib.MovedError("4998 c:3"), lib.MovedError("4998 a:1"), "told"])
    moved = but(Y=lambda node: next(back))
    calls: list[Call] = [("X",), ("Y",), ("WAIT",)]
    first, *others = cluster.deliver(moved, calls, [LOW, LOW, AfterCalls((0, 1))])
    assert isinstance(first, lib.TryAgainError)
    assert others == ["told", (A, "WAIT")]


def test_but_an_error_stands(cluster: Driven) -> None:
    full = lib.OutOfMemoryError("full")
    moved = but(X=lambda _: full, Y=on(A, lib.MovedError("4998 c:3")))
    calls: list[Call] = [("X",), ("Y",), ("WAIT",)]
    replies = cluster.deliver(moved, calls, [LOW, LOW, AfterCalls((0, 1))])
    assert replies == [full, C, (C, "WAIT")]


def test_calls_that_several_nodes_redirect_keep_their_order(cluster: Driven) -> None:
    """A WAIT counts what went before it, and would not count what has come to stand behind it."""
    away = {LOW: "4998 c:3", HIGH: "9189 c:3"}
    moved = but(
        X=on(A, lib.MovedError(away[LOW])),
        Y=on(B, lib.MovedError(away[HIGH])),
        Z=on(A, lib.MovedError(away[LOW])),
    )
    calls: list[Call] = [("X",), ("Y",), ("Z",), ("WAIT",)]
    assert cluster.deliver(moved, calls, [LOW, HIGH, LOW, AfterCalls((0, 1, 2))])[3] == (C, "WAIT")
    assert cluster.trips[-1] == NodeRequest(C, calls)


def test_nodes_that_redirect_in_a_circle_are_left_alone(cluster: Driven) -> None:
    circle = but(X=lambda node: lib.MovedError("4998 c:3" if node == A else "4998 a:1"))
    (reply,) = cluster.deliver(circle, [("X",)], [LOW])
    assert isinstance(reply, lib.TryAgainError)
    assert len(cluster.asked("X")) == HOPS


def test_a_node_that_names_no_host_means_itself(cluster: Driven) -> None:
    moved = but(X=on(A, lib.MovedError("4998 :9")))
    assert cluster.deliver(moved, [("X",)], [LOW]) == ["redis://a:9"]


@pytest.mark.parametrize(
    "error",
    [
        lib.ClusterDownError("down"),
        lib.ReadOnlyError("a replica"),
        lib.TimeoutError("it hangs"),
        OSError("gone"),
    ],
)
def test_a_sign_of_change_has_the_map_asked_for_anew(cluster: Driven, error: Exception) -> None:
    replies = cluster.deliver(but(X=on(A, error)), [("X",), ("X",)], [LOW, HIGH])
    assert replies == [error, B], "the other node's answer stands"
    cluster.deliver(echo, [("X",)], [LOW])
    assert len(cluster.asked("CLUSTER")) == 1


def test_a_slot_on_its_way_does_not(cluster: Driven) -> None:
    (reply,) = cluster.deliver(but(X=on(A, lib.TryAgainError("soon"))), [("X",)], [LOW])
    assert isinstance(reply, lib.TryAgainError)
    cluster.deliver(echo, [("X",)], [LOW])
    assert cluster.asked("CLUSTER") == []


def test_a_script_is_missing_on_a_node_and_loaded_there(cluster: Driven) -> None:
    missing = but(X=lambda node: lib.NoScriptError("no") if node == A else lib.AskError("4998 a:1"))
    replies = cluster.deliver(missing, [("X",), ("X",)], [LOW, HIGH])
    assert all(isinstance(reply, NoScript) and reply.node == A for reply in replies)
    assert cluster.deliver(echo, [("SCRIPT",)], [ToNode(C)]) == [(C, "SCRIPT")]


def test_a_listener_finds_the_owner(cluster: Driven) -> None:
    assert cluster.locate(echo, LOW) == A
    cluster.routes.doubt()
    turned = but(CLUSTER=lambda _: [[0, 16383, [b"c", 3]]])
    assert cluster.locate(turned, LOW) == C
    cluster.routes.doubt()
    half = but(CLUSTER=lambda _: SLOTS[1:])
    assert isinstance(cluster.locate(half, LOW), lib.ClusterDownError)


# -- Sentinels


def test_the_master_is_asked_for_once(sentinels: Driven) -> None:
    told = but(SENTINEL=lambda _: MASTER)
    assert sentinels.deliver(told, [("X",), ("Y",)], [LOW, HIGH]) == [(A, "X"), (A, "Y")]
    assert len(sentinels.asked("SENTINEL")) == 1
    assert len(sentinels.trips) == 2, "all in one, so that a WAIT is of the master that wrote"
    sentinels.deliver(told, [("X",)], [LOW])
    assert sentinels.asked("SENTINEL") == []
    assert sentinels.routes.must_be_master(A)
    assert not sentinels.routes.must_be_master("redis://s:1")


@pytest.mark.parametrize(
    "error",
    [
        OSError("gone"),
        lib.ConnectionError("gone"),
        lib.TimeoutError("it hangs"),
        lib.ReadOnlyError("a replica now"),
    ],
)
def test_and_again_when_it_has_gone_or_is_one_no_more(sentinels: Driven, error: Exception) -> None:
    told = but(SENTINEL=lambda _: MASTER, X=on(A, error))
    assert sentinels.deliver(told, [("X",)], [LOW]) == [error], "for a repeat to cure"
    asked = sentinels.asked("SENTINEL")
    new = but(SENTINEL=lambda _: [b"b", b"2"])
    assert sentinels.deliver(new, [("X",)], [LOW]) == [(B, "X")]
    assert sentinels.asked("SENTINEL") != asked, "another one first"


def test_a_sentinel_that_does_not_answer_is_passed_over(sentinels: Driven) -> None:
    told = but(SENTINEL=lambda node: OSError("no") if node == "redis://s:1" else MASTER)
    for _ in range(2):
        sentinels.routes.doubt()
        assert sentinels.deliver(told, [("X",)], [LOW]) == [(A, "X")]


def test_sentinels_that_may_hang_are_asked_together() -> None:
    three = Driven("redis+sentinel://s:1,t:2,u:3/shop")
    three.deliver(lambda *_: lib.TimeoutError("they hang"), [("X",)], [LOW])
    assert [len(nodes) for nodes in three.rounds] == [1, 2]


def test_if_no_sentinel_answers_nothing_can_be_sent(sentinels: Driven) -> None:
    gone = OSError("no")
    assert sentinels.deliver(lambda *_: gone, [("X",)], [LOW]) is gone


def test_a_name_that_they_do_not_know_is_said(sentinels: Driven) -> None:
    (reply,) = sentinels.deliver(but(SENTINEL=lambda _: None), [("X",)], [LOW])
    assert isinstance(reply, UsageError)
    assert "know no master 'shop'" in str(reply)


# -- errors that stand in the text of another


@pytest.mark.parametrize(
    ("text", "kind", "says"),
    [
        (
            "Error running script (call to f_1a): @user_script:68: WRONGTYPE Operation",
            lib.ResponseError,
            "WRONGTYPE Operation",
        ),
        (
            "Error running script (call to f_1a): @user_script:7: @user_script: 7: -OOM command",
            lib.OutOfMemoryError,
            "command",
        ),
        (
            "Error running script (call to f_1a): @user_script: 7: -READONLY You can't",
            lib.ReadOnlyError,
            "You can't",
        ),
        ("MOVED 4998 c:3", lib.MovedError, "4998 c:3"),
        ("ASK 4998 c:3", lib.AskError, "4998 c:3"),
        ("TRYAGAIN Multiple keys", lib.TryAgainError, "Multiple keys"),
        ("CLUSTERDOWN The cluster is down", lib.ClusterDownError, "The cluster is down"),
        ("BADARG claim count", lib.ResponseError, "BADARG claim count"),
    ],
)
def test_what_a_command_in_a_script_met(text: str, kind: type[Exception], says: str) -> None:
    error = unwrapped(lib.ResponseError(text))
    assert type(error) is kind
    assert str(error) == says
