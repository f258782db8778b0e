"""Benchmarks that make replies themselves, or read them by hand, know those of the scripts."""

from __future__ import annotations

import inspect
import json

import pytest

from benchmarks import alone, limits
from benchmarks.filling import fill
from benchmarks.lab import Lab
from bide.client import aio, blocking
from bide.embedded import Server


@pytest.fixture(autouse=True)
def _clients_are_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """All their methods, whichever a benchmark replaces: later tests of this process use them."""
    for client in (aio.AsyncClient, blocking.Client, blocking.Connections):
        for name, method in [*vars(client).items()]:
            if inspect.isfunction(method):
                monkeypatch.setattr(client, name, method)


def test_a_worker_runs_jobs_that_no_server_knows(
    one_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    alone.work(one_url, "300", "100")
    assert json.loads(capsys.readouterr().out).keys() == {"wall µs", "CPU µs"}


def test_a_producer_enqueues_what_reaches_no_server(
    one_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    alone.add(one_url, "50")
    assert json.loads(capsys.readouterr().out).keys() == {"one", "many"}


def test_each_stage_runs(one_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    alone.stages(one_url, "100")
    assert len(json.loads(capsys.readouterr().out)) > 3


def test_a_program_in_c_claims_and_settles(one_server: Server) -> None:
    compiled = limits.build()
    if compiled is None:
        pytest.skip("without a C compiler")
    lab = Lab(one_server, True, None)
    fill(one_server, 250, -60_000_000, 1_000_000)
    scripts = (*limits._script(lab, "claim"), *limits._script(lab, "settle"))
    assert limits._bare(lab, compiled, "drain", 250, 100, *scripts).keys() == {
        "wall µs",
        "server µs",
    }
