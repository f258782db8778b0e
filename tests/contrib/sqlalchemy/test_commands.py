"""`bide outbox`, and `bide worker --outbox`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from bide import Queue
from tests.contrib.sqlalchemy.conftest import Shop
from tests.support.console import bide, environment, error_of, said
from tests.support.eventually import eventually
from tests.support.order_tables import Base

pytestmark = pytest.mark.slow
ON_ONE = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""For what does not differ between databases, or is tried on each by the tests of the outbox."""

MODULE = """
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import create_async_engine
from bide import Queue
from bide.contrib.sqlalchemy import Outbox

engine = sa.create_engine({database!r})
outbox = Outbox(sa.MetaData(), engine)
awaited = Outbox(sa.MetaData(), create_async_engine({awaited!r}))
unready = Outbox(sa.MetaData())
queue = Queue("orders")

@queue.task(name="double")
def double(n: int) -> int:
    return 2 * n
"""


def double(n: int) -> int:
    return 2 * n


@pytest.fixture
def home(tmp_path: Path, database: str) -> Path:
    awaited = database.replace("sqlite:", "sqlite+aiosqlite:")
    awaited = awaited.replace("+psycopg", "+asyncpg").replace("+pymysql", "+asyncmy")
    (tmp_path / "shop.py").write_text(MODULE.format(database=database, awaited=awaited))
    return tmp_path


def write(shop: Shop, *ids: str) -> None:
    """Commit jobs whose sending fails or is left; `lost` is refused for good."""
    shop.outbox.fast = False
    task = Queue("orders", url=shop.url).task(name="double")(double)
    with shop.begin() as session:
        for id in ids:
            depends_on = "nobody" if id == "lost" else None
            shop.outbox.enqueue(session, task.options(job_id=id, depends_on=depends_on), 4)


@contextmanager
def running(home: Path, url: str, *args: str) -> Iterator[None]:
    """A program that ends well when it is told to."""
    program = subprocess.Popen(
        [sys.executable, "-m", "bide", *args],
        cwd=home,
        env=environment(url),
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield
    finally:
        program.send_signal(signal.SIGTERM)
        _, errors = program.communicate(timeout=60)
    assert program.returncode == 0, errors
    assert "still run" not in errors
    assert "Traceback" not in errors


@ON_ONE
def test_rows_are_listed_retried_and_deleted(shop: Shop, home: Path) -> None:
    write(shop, "sent", "lost")
    listed = said(bide(home, "outbox", "ls", "shop:outbox", url=shop.url))
    assert [line.split()[-1] for line in listed.splitlines()[1:]] == ["waiting", "waiting"]
    assert "1 row sent." in said(
        bide(home, "outbox", "relay", "--burst", "shop:awaited", url=shop.url)
    )
    only = said(bide(home, "outbox", "ls", "shop:awaited", "--refused", "--json", url=shop.url))
    (row,) = json.loads(only)["rows"]
    assert (row["job_id"], row["refused"], row["tries"]) == ("lost", True, 1)
    number = str(row["number"])
    assert "1 row will be sent again" in said(bide(home, "outbox", "retry", "shop:outbox", number))
    assert shop.rows()[0].retry_us == 0
    done = bide(home, "outbox", "delete", "shop:outbox", number, "9876", number, "-y")
    assert said(done, 3) == "1 row deleted.\n"
    assert f"There is no row of 1 of the numbers {number}, 9876; " in done.stderr
    assert shop.rows() == []
    assert "All rows" in bide(home, "outbox", "ls", "shop:outbox").stderr
    assert shop.ids() == {"sent"}


@ON_ONE
def test_mistakes(shop: Shop, home: Path) -> None:
    assert "write it as shop.db:outbox" in error_of(bide(home, "outbox", "ls", "shop"), 2)
    assert "no variable 'nothing'" in error_of(bide(home, "outbox", "ls", "shop:nothing"), 2)
    assert "holds no outbox" in error_of(bide(home, "outbox", "ls", "shop:queue"), 2)
    assert "needs the engine" in error_of(bide(home, "outbox", "ls", "shop:unready"), 2)
    assert "cannot be imported" in error_of(bide(home, "outbox", "ls", "shopp:outbox"))
    assert "or give --all" in error_of(bide(home, "outbox", "retry", "shop:outbox"), 2)
    assert "by their numbers" in error_of(bide(home, "outbox", "delete", "shop:outbox"), 2)
    assert "--yes" in error_of(bide(home, "outbox", "delete", "shop:outbox", "7"), 2)
    assert "no row" in error_of(bide(home, "outbox", "delete", "shop:outbox", "7", "-y"), 3)
    assert "no variable" in error_of(bide(home, "worker", "shop", "--outbox", "shop:x"), 2)
    for number in ("0", str(2**63)):
        for verb in ("retry", "delete"):
            done = bide(home, "outbox", verb, "shop:outbox", number)
            assert f"{number} is not in the range" in error_of(done, 2)


def test_a_database_without_the_tables_is_named_in_a_sentence(shop: Shop, home: Path) -> None:
    Base.metadata.drop_all(shop.engine)
    for args in (
        ("outbox", "ls", "shop:outbox"),
        ("outbox", "relay", "--burst", "shop:awaited"),
        ("outbox", "retry", "--all", "shop:outbox"),
        ("worker", "shop", "--burst", "--outbox", "shop:outbox"),
    ):
        assert "create the outbox's tables" in error_of(bide(home, *args, url=shop.url))


@pytest.mark.parametrize("name", ["outbox", "awaited"])
def test_a_relay_alone(shop: Shop, home: Path, name: str) -> None:
    with running(home, shop.url, "outbox", "relay", f"shop:{name}"):
        write(shop, "a")
        eventually(lambda: shop.ids() == {"a"})


@pytest.mark.parametrize("name", ["outbox", "awaited"])
@pytest.mark.parametrize("more", [[], ["-w", "2"]])
def test_a_relay_in_a_worker(shop: Shop, home: Path, name: str, more: list[str]) -> None:
    with running(home, shop.url, "worker", "shop", "--outbox", f"shop:{name}", *more):
        write(shop, "a")
        eventually(lambda: not shop.rows())
        assert shop.queue.fetch("a").wait(timeout=60) == 8


@ON_ONE
def test_doctor_reports_rows_that_are_not_sent(shop: Shop, home: Path) -> None:
    def checks() -> list[tuple[str, str]]:
        apart = {"PYTHONHASHSEED": "0"}  # in a process of its own
        done = bide(home, "doctor", "--json", "--outbox", "shop:outbox", url=shop.url, **apart)
        found = json.loads(done.stdout)["checks"]
        return [(c["verdict"], c["says"]) for c in found if c["check"] == "outbox"]

    assert checks() == [("ok", "0 rows not sent yet")]
    write(shop, "lost")
    shop.outbox.relay(burst=True)
    write(shop, "a")
    table = shop.outbox.tables.outbox
    with shop.engine.begin() as connection:
        connection.execute(sa.update(table).values(written_us=table.c.written_us - 60_000_000))
    refused, late = checks()
    assert refused == ("fail", "1 row refused by the server for good")
    assert late[0] == "fail"
    told = bide(home, "doctor", "--outbox", "shop:outbox", url=shop.url, PYTHONHASHSEED="0").stdout
    assert "`bide outbox ls shop:outbox --refused` shows the errors" in told
    assert "run a relay: `bide worker --outbox shop:outbox`" in told
    assert late[1].startswith("1 row not sent, the oldest for ")
    Base.metadata.drop_all(shop.engine)
    ((verdict, says),) = checks()
    assert verdict == "fail"
    assert "cannot be read" in says


@pytest.mark.parametrize("name", ["outbox", "awaited"])
def test_metrics_count_the_rows(shop: Shop, home: Path, name: str) -> None:
    write(shop, "a", "lost")
    shop.outbox.relay(burst=True)
    write(shop, "b", "c")
    apart = {"PYTHONHASHSEED": "0"}  # in a process of its own
    text = said(bide(home, "metrics", "--outbox", f"shop:{name}", url=shop.url, **apart))
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if "outbox" in line[:15])
    assert found['bide_outbox_rows{state="waiting"}'] == "2"
    assert found['bide_outbox_rows{state="refused"}'] == "1"
    assert float(found["bide_outbox_age_seconds"]) > 0


@ON_ONE
def test_a_burst_sends_first_and_then_works(shop: Shop, home: Path) -> None:
    write(shop, "a")
    done = bide(home, "worker", "shop", "--burst", "--outbox", "shop:outbox", url=shop.url)
    assert done.returncode == 0, done.stderr
    assert shop.queue.fetch("a").result == 8
