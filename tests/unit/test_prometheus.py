"""Whatever stands in a label, a reader of the text format reads it again."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from bide.model.latency import Distribution, Family, expose
from bide.protocol.commands.worker import Settle
from bide.worker.metrics import (
    LATENESS,
    MOST_TASKS,
    OTHER,
    RUN_TIME,
    TaskMetrics,
    WorkerMetrics,
    add_all,
)

# The parser splits lines as `str.splitlines` does, at more than the format's line feed.
LABELS = st.text(st.characters(exclude_categories=["Cs"])).filter(
    lambda text: text.isprintable() or set(text) <= {"\n", "\\", '"', " "}
)


@given(label=LABELS, help=LABELS, value=st.floats(-1e9, 1e9))
@example(label='a"b\\n\nc', help='x\\y\n"z"', value=0.5)
@example(label="\\", help="\\", value=1e-9)
def test_a_value_with_labels_is_read_again(label: str, help: str, value: float) -> None:
    family = Family("bide_x", "gauge", help or "-", [({"queue": label, "state": "a"}, value)])
    (read,) = text_string_to_metric_families(expose([family]))
    (sample,) = read.samples
    assert (sample.name, sample.labels) == ("bide_x", {"queue": label, "state": "a"})
    assert math.isclose(sample.value, value, rel_tol=1e-9)
    assert read.type == "gauge"


def test_what_is_no_character_is_replaced() -> None:
    text = expose([Family("bide_x", "gauge", "A.", [({"queue": "a\udcffb"}, 1)])])
    assert text.encode().splitlines()[-1] == b'bide_x{queue="a?b"} 1'


def test_a_histogram_counts_up_to_each_bound() -> None:
    seen = Distribution((0.5, 2), (3, 0, 1), 9.25)
    text = expose([Family("bide_s", "histogram", "A.", [({"queue": "q"}, seen)])])
    assert text.splitlines()[2:] == [
        'bide_s_bucket{queue="q",le="0.5"} 3',
        'bide_s_bucket{queue="q",le="2"} 3',
        'bide_s_bucket{queue="q",le="+Inf"} 4',
        'bide_s_sum{queue="q"} 9.25',
        'bide_s_count{queue="q"} 4',
    ]


@given(
    st.lists(st.floats(0, 4000) | st.sampled_from(RUN_TIME)),
    st.lists(st.floats(0, RUN_TIME[0]), max_size=9),
)
@example([0.0005, 0.001, 0.0011, 1800, 1801], [])
def test_a_bound_belongs_to_the_bucket_below_it(some: list[float], quick: list[float]) -> None:
    run_time = TaskMetrics().run_time
    run_time.add_all(RUN_TIME, [*some])
    run_time.add_all(RUN_TIME, [*quick])
    counts = [0] * (len(RUN_TIME) + 1)
    for seconds in some + quick:
        counts[sum(bound < seconds for bound in RUN_TIME)] += 1
    assert run_time.counts == counts
    assert math.isclose(run_time.total, sum(some + quick), abs_tol=1e-9)


def test_lateness_is_counted_once_and_never_below_zero() -> None:
    metrics = WorkerMetrics()
    runs: list[Any] = [
        SimpleNamespace(
            task_name="send",
            metric_label="send",
            missing=False,
            late_us=late_us,
            is_late_counted=False,
            ran=0.0,
        )
        for late_us in (-5.0, 1000.0, 1001.0, 3_600_001_000.0, None)
    ]
    metrics.note_start(runs[2])
    metrics.note_settles([Settle("j1", 1, "complete")] * 5, ["ok"] * 5, runs)
    lateness = metrics.tasks["send"].lateness
    assert (lateness.counts[:2], lateness.counts[-1]) == ([2, 1], 1)
    assert sum(lateness.counts) == 4
    assert math.isclose(lateness.total, 3600.001 + 0.001 + 0.001001)
    assert metrics.tasks["send"].settled == {"complete": 5}
    assert sum(metrics.tasks["send"].run_time.counts) == 0


def test_tasks_after_the_first_hundred_share_a_name() -> None:
    total = WorkerMetrics()
    for worker in range(3):
        one = WorkerMetrics()
        for number in range(80):
            one.of(f"shop:{worker}-{number}").settled["complete"] = 1
        total.add(one)
    assert len(total.tasks) == MOST_TASKS + 1
    assert total.tasks["shop:0-0"].settled == {"complete": 1}
    assert total.tasks[OTHER].settled == {"complete": 240 - MOST_TASKS}


def test_figures_of_workers_add_up_and_share_nothing() -> None:
    total, one = (
        {"mail": WorkerMetrics(claims=1)},
        {"mail": WorkerMetrics(2), "low": WorkerMetrics(3)},
    )
    one["mail"].of("send").settled["fail"] = 4
    one["mail"].of("send").lateness.add_all(LATENESS, [2])
    add_all(total, one)
    add_all(total, one)
    assert (total["mail"].claims, total["low"].claims) == (5, 6)
    send = total["mail"].tasks["send"]
    assert send.settled == {"fail": 8}
    assert (sum(send.lateness.counts), send.lateness.total) == (2, 4)
    assert (one["low"].claims, sum(one["mail"].tasks["send"].lateness.counts)) == (3, 1)
