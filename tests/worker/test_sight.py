"""Which queues a worker serves if none is named, and what it says of jobs that it never sees."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bide import Queue
from bide.client.url import same_servers
from bide.embedded import Server
from tests.support.console import bide, environment
from tests.support.workers import at_work, eventually

SHOP = """
from bide import Queue

orders = Queue("orders")
mail = Queue("mail")


@orders.task
def cancel_unpaid(order_id: int) -> None: ...


@orders.task
def pay(order_id: int) -> None: ...


@mail.task
def send(to: str) -> None: ...
"""

PLAIN = """
from bide import Queue

queue = Queue("plain")


def work() -> None: ...
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "plain.py").write_text(PLAIN)
    (tmp_path / "nothing.py").write_text("def work() -> None: ...\n")
    (tmp_path / "both.py").write_text("import shop, nothing\n")
    return tmp_path


def log_of(home: Path, url: str, *args: str, **env: str) -> str:
    """What a worker logs that runs until nothing is due."""
    done = bide(home, "worker", *args, "--burst", url=url, **env)
    assert done.returncode == 0, done.stderr
    return done.stderr


def served(log: str) -> str:
    (line,) = (line for line in log.splitlines() if " serves " in line and " at once" in line)
    return line.partition(" serves ")[2].partition(", 100 at once")[0]


def warnings(log: str) -> list[str]:
    return [line.partition("WARNING ")[2] for line in log.splitlines() if "WARNING" in line]


def test_a_lazy_object_in_a_module_is_not_asked_what_it_is(shop: Path, one_url: str) -> None:
    """As Flask's `request` is, which raises where there is no request."""
    lazy = "class Lazy:\n    __class__ = property(lambda self: 1 / 0)\nrequest = Lazy()\n"
    (shop / "lazy.py").write_text(PLAIN + lazy)
    assert served(log_of(shop, one_url, "lazy")) == "plain"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("modules", "queues"),
    [
        (["shop"], "orders, mail"),
        (["both"], "orders, mail"),
        (["plain"], "plain"),
        (["plain", "shop"], "plain, orders, mail"),
        (["nothing"], "default"),
    ],
)
def test_without_a_queue_it_serves_those_of_its_modules(
    shop: Path, one_url: str, modules: list[str], queues: str
) -> None:
    log = log_of(shop, one_url, *modules)
    assert served(log) == queues
    assert warnings(log) == []


@pytest.mark.slow
def test_a_job_of_such_a_queue_is_run(shop: Path, one_url: str) -> None:
    assert bide(shop, "enqueue", "shop:send", "ann", url=one_url).returncode == 0
    assert "stopped after 1 job" in log_of(shop, one_url, "shop")


@pytest.mark.slow
def test_so_does_each_worker_of_a_supervisor(shop: Path, one_url: str) -> None:
    log = log_of(shop, one_url, "shop", "-w", "1")
    assert served(log) == "orders, mail"


@pytest.mark.slow
def test_a_setting_and_an_option_go_first(shop: Path, one_url: str) -> None:
    (shop / "pyproject.toml").write_text('[tool.bide.worker]\nqueues = ["mail", "orders"]\n')
    assert served(log_of(shop, one_url, "shop")) == "mail, orders"
    assert served(log_of(shop, one_url, "shop", "-q", "orders", "-q", "mail")) == "orders, mail"


def test_a_module_without_anything_to_run_is_told(shop: Path, one_url: str) -> None:
    (shop / "empty_.py").write_text("x = 1\n")
    (shop / "plain_.py").write_text("def f(): ...\n")
    assert warnings(log_of(shop, one_url, "empty_", "-q", "mail")) == [
        "empty_: no task and no function is defined there, so this worker has nothing to run; "
        "start it with the modules of your tasks"
    ]
    assert warnings(log_of(shop, one_url, "plain_", "empty_", "-q", "mail")) == []


def test_a_decorator_above_that_of_the_task_is_told(shop: Path, one_url: str) -> None:
    (shop / "above_.py").write_text(ABOVE)
    queue = Queue("above", url=one_url)
    assert bide(shop, "enqueue", "above_:f", url=one_url).returncode == 0
    log = log_of(shop, one_url, "above_")
    assert warnings(log) == [
        "above_:f has a decorator above the decorator of its task, so its jobs run without that; "
        "put it below"
    ]
    assert queue.counts().completed == 1, "and not in the queue default"
    queue.close()


ABOVE = """
import functools
import bide

def twice(function):
    @functools.wraps(function)
    def call():
        return 2 * function()
    return call

queue = bide.Queue("above")

@twice
@queue.task
def f(): return 1

@queue.task
@twice
def g(): return 1
"""


@pytest.mark.slow
def test_a_misspelt_queue_is_told(shop: Path, one_url: str) -> None:
    assert warnings(log_of(shop, one_url, "shop", "-q", "odrers")) == [
        "this worker serves odrers, where its modules have no task: it will not run "
        "shop:cancel_unpaid and 1 more on orders, shop:send on mail; start it with -q orders -q "
        "mail"
    ]


@pytest.mark.slow
def test_a_queue_that_nobody_serves_is_told(shop: Path, one_url: str) -> None:
    assert warnings(log_of(shop, one_url, "shop", "-q", "orders", "-q", "mial")) == [
        "no worker runs shop:send on mail: start this worker with -q mail too, or another; on "
        "mial, which it serves, its modules have no task"
    ]


def test_one_that_another_worker_serves_is_not(shop: Path, one_url: str) -> None:
    mail = Queue("mail", url=one_url)
    with at_work(mail):
        eventually(mail.workers)
        assert warnings(log_of(shop, one_url, "shop", "-q", "orders")) == []
    mail.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "args",
    [
        ("shop", "-q", "orders", "-q", "mail"),
        ("shop", "-q", "orders", "-q", "mail", "-q", "by-path"),
        ("plain", "-q", "by-path"),
        ("nothing", "-q", "by-path"),
    ],
)
def test_what_may_be_meant_is_not(shop: Path, one_url: str, args: tuple[str, ...]) -> None:
    """Functions are enqueued by their import path on whichever queue."""
    assert warnings(log_of(shop, one_url, *args)) == []


@pytest.mark.slow
def test_another_prefix_is_told(shop: Path, one_url: str) -> None:
    (shop / "away.py").write_text(SHOP.replace('"orders"', '"orders", prefix="staging"'))
    assert warnings(log_of(shop, one_url, "away")) == [
        "jobs of away:cancel_unpaid and 1 more go under the prefix 'staging' (queue orders), and "
        "this worker serves the prefix 'bide'; give both the same, or leave prefix= out of the "
        "queue and set $BIDE_PREFIX for both"
    ]


def test_another_server_is_told(
    shop: Path, one_url: str, tmp_server: Callable[..., Server]
) -> None:
    other = tmp_server().url.replace("unix://", "unix://:secret@")
    (shop / "away.py").write_text(SHOP.replace("Queue(", f"Queue(url={other!r}, name="))
    told = warnings(log_of(shop, one_url, "away", "-q", "orders", "-q", "mail"))
    assert len(told) == 2
    assert told[0].startswith("jobs of away:cancel_unpaid and 1 more go to unix://")
    assert "(queue orders), and this worker serves unix://" in told[0]
    assert "secret" not in told[0]


SITE = """
import importlib.util, sys, tempfile
from django.conf import settings

OURS = {"BACKEND": "bide.contrib.django.Backend", "OPTIONS": {"on_commit": False}}
settings.configure(
    DATABASES={},
    TASKS={
        "default": OURS | {"QUEUES": ["low", "mail"]},
        "other": OURS | {"QUEUES": ["reports"]},
    },
)
import django

django.setup()
if importlib.util.find_spec("django.tasks"):
    from django.tasks import task
else:
    from django_tasks import task


@task(queue_name="mail")
def send(to):
    return to


@task(backend="other", queue_name="reports")
def report():
    return "read"


def enqueue():
    send.using(queue_name="low").enqueue("ann")
    report.enqueue()
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """An application of Django."""
    pytest.importorskip("bide.contrib.django")
    (tmp_path / "site_.py").write_text(SITE)
    return tmp_path


def test_the_queues_of_djangos_settings_are_served(site: Path, one_url: str) -> None:
    program = [sys.executable, "-c", "import site_; site_.enqueue()"]
    env = environment(one_url)
    subprocess.run(program, cwd=site, env=env, check=True, capture_output=True)
    log = log_of(site, one_url, "site_")
    assert served(log) == "low, mail, reports"
    assert warnings(log) == []
    assert "stopped after 2 jobs" in log


@pytest.mark.slow
def test_one_that_no_worker_serves_is_told_too(site: Path, one_url: str) -> None:
    assert warnings(log_of(site, one_url, "site_", "-q", "odrers")) == [
        "this worker serves odrers, where its modules have no task: it will not run site_:send on "
        "low, site_:send on mail, site_:report on reports; start it with -q low -q mail -q reports"
    ]
    assert warnings(log_of(site, one_url, "site_", "-q", "low", "-q", "mail")) == [
        "no worker runs site_:report on reports: start this worker with -q reports too, or another"
    ]


def test_what_is_only_enqueued_elsewhere_is_not(
    shop: Path, one_url: str, tmp_server: Callable[..., Server]
) -> None:
    """A module may enqueue jobs for others, by name; this worker is not to run them."""
    more = f"\nbilling = Queue('billing', url={tmp_server().url!r})\n"
    (shop / "more.py").write_text(SHOP + more)
    log = log_of(shop, one_url, "more")
    assert served(log) == "orders, mail"
    assert warnings(log) == []


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("redis://127.0.0.1:6379/0", "redis://localhost", True),
        ("redis://a:pw@host:6379/0", "redis://b:other@HOST/0?username=x", True),
        ("redis://host/1", "redis://host?db=1", True),
        ("rediss://host:1?ssl_cert_reqs=none", "rediss://host:1", True),
        ("unix:///s?db=0", "unix:///s", True),
        ("redis+cluster://a:1,b:1", "redis+cluster://b:1,c:1", True),
        ("redis+sentinel://a,b/main/0", "redis+sentinel://b/main", True),
        ("redis://host/0", "redis://host/1", False),
        ("redis://host:1", "redis://host:2", False),
        ("redis://one", "redis://two", False),
        ("unix:///s", "unix:///t", False),
        ("unix:///s?db=1", "unix:///s", False),
        ("redis+cluster://a:1", "redis+cluster://c:1", False),
        ("redis+sentinel://a/main/0", "redis+sentinel://a/other/0", False),
        ("redis+sentinel://a/main/1", "redis+sentinel://a/main/0", False),
        ("redis+cluster://a:1", "redis://a:1", False),
    ],
)
def test_servers_are_the_same_whoever_asks_them(one: str, other: str, same: bool) -> None:
    assert same_servers(one, other) is same
    assert same_servers(other, one) is same
