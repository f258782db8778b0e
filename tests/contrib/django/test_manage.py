"""`manage.py bide`, and the dashboard as a view of Django."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.request import urlopen

import pytest
from django.core.exceptions import PermissionDenied
from django.test import RequestFactory, override_settings

from bide import Queue
from bide.contrib.django.dashboard import _on_loop, _page, dashboard
from bide.contrib.django.management.commands.bide import without_django
from tests.support.console import bide, environment, error_of
from tests.support.eventually import eventually

FILES = {
    "manage.py": (
        "import os, sys\n"
        "os.environ.setdefault('DJANGO_SETTINGS_MODULE', 'shop.settings')\n"
        "from django.core.management import execute_from_command_line\n"
        "execute_from_command_line(sys.argv)\n"
    ),
    "shop/__init__.py": "",
    "shop/settings.py": """
SECRET_KEY = "x"
USE_TZ = True
ROOT_URLCONF = "shop.urls"
ALLOWED_HOSTS = ["testserver"]
INSTALLED_APPS = [
    "django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions",
    "orders", "plain", "bide.contrib.django",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
OPTIONS = {}
TASKS = {"default": {"BACKEND": "bide.contrib.django.Backend", "QUEUES": ["mail"],
                     "OPTIONS": OPTIONS}}
""",
    "shop/urls.py": (
        "from django.urls import include, path\n"
        "urlpatterns = [path('jobs/', include('bide.contrib.django.urls'))]\n"
    ),
    "plain/__init__.py": "",
    "orders/__init__.py": "",
    "orders/models.py": (
        "from django.db import models\nclass Order(models.Model):\n    paid = models.DateField()\n"
    ),
    "orders/tasks.py": """
import importlib.util
from bide import Queue
if importlib.util.find_spec("django.tasks"):
    from django.tasks import task
else:
    from django_tasks import task
from orders.models import Order

queue = Queue("orders")

@task(queue_name="mail")
def receipt(order_id: int) -> str:
    return f"{Order.__name__} {order_id}"

@queue.task
def ship(order_id: int) -> str:
    return f"{Order._meta.label} {order_id}"

def plain(order_id: int) -> str:
    return f"plain {order_id}"
""",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def manage(
    project: Path, *args: str, url: str | None, code: int = 0
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "manage.py", *args],
        cwd=project,
        env=environment(url),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == code, done.stderr
    return done


def three_jobs(queue: Queue, mail: Queue) -> list[Any]:
    return [
        queue.enqueue("orders.tasks:ship", 1),
        queue.enqueue("orders.tasks:plain", 2),
        mail.enqueue("orders.tasks:receipt", 3),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("args", [[], ["-x", "process", "-c", "1"], ["-w", "2"]])
def test_a_worker_runs_the_tasks_of_all_applications(
    project: Path, one_url: str, args: Sequence[str]
) -> None:
    jobs = three_jobs(Queue("orders"), Queue("mail"))
    done = manage(project, "bide", "worker", "--burst", *args, url=one_url)
    assert [job.refresh().result for job in jobs] == ["orders.Order 1", "plain 2", "Order 3"]
    assert "WARNING" not in done.stderr


@pytest.mark.slow
def test_a_project_without_tasks_is_told_so(project: Path, one_url: str) -> None:
    (project / "orders/tasks.py").unlink()
    done = manage(project, "bide", "worker", "--burst", url=one_url)
    assert "no application of INSTALLED_APPS has a module named tasks" in done.stderr


@pytest.mark.slow
def test_it_is_the_command_line_with_the_server_of_the_settings(
    project: Path, one_url: str
) -> None:
    settings = project / "shop/settings.py"
    text = settings.read_text().replace("OPTIONS = {}", f"OPTIONS = {{'url': {one_url!r}}}")
    settings.write_text(text)
    Queue("orders").enqueue("orders.tasks:ship", 1)
    shown = manage(project, "bide", "jobs", "ls", "--json", "--settings=shop.settings", url=None)
    assert "orders.tasks:ship" in shown.stdout
    other = manage(project, "bide", "info", "-u", "redis://127.0.0.1:1", url=None, code=1)
    assert "redis://127.0.0.1:1" in other.stderr, "an option takes precedence"
    wrong = manage(project, "bide", "worker", "--bursst", url=one_url, code=2)
    assert "See `manage.py bide worker --help`." in wrong.stderr
    assert "Usage: manage.py bide" in manage(project, "help", "bide", url=one_url).stdout
    called = "from django.core.management import call_command as c; c('bide', 'jobs', 'show', 'x')"
    failed = manage(project, "shell", "-v0", "-c", called, url=one_url, code=3)
    assert "CommandError: bide exited with 3." in failed.stderr


ROWS = """
from django.db import transaction
from bide.contrib.django.outbox import outbox
from orders.tasks import queue, ship
outbox.fast = False
with transaction.atomic():
    outbox.enqueue(ship.options(job_id="left"), 1)
    outbox.enqueue(ship.options(job_id="child", depends_on="other"), 2)
"""


@pytest.fixture
def desk(project: Path, one_url: str) -> Path:
    """A project with an outbox, in which a process has left rows: 1 can be sent, and 2 cannot."""
    settings = project / "shop/settings.py"
    apps = '"bide.contrib.django", "bide.contrib.django.outbox"'
    settings.write_text(settings.read_text().replace('"bide.contrib.django"', apps, 1))
    manage(project, "migrate", "-v0", "bide_outbox", url=one_url)
    manage(project, "shell", "-v0", "-c", ROWS, url=one_url)
    assert Queue("orders").counts().waiting == 0
    return project


def dev_until(home: Path, program: str, *parts: str) -> list[str]:
    """Run `manage.py bide dev` beside a program, until a line has one of the parts; its lines."""
    process = subprocess.Popen(
        [sys.executable, "manage.py", "bide", "dev", "--", sys.executable, "-c", program],
        cwd=home,
        env=environment(None),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    said: list[str] = []
    with process.stdout as lines:
        for line in lines:
            said.append(line)
            if any(part in line for part in parts):
                process.terminate()
    assert process.wait(60) == 0, said
    return said


@pytest.mark.slow
def test_bide_relay_sends_what_was_left(desk: Path, one_url: str) -> None:
    relay = subprocess.Popen(
        [sys.executable, "manage.py", "bide_relay"],
        cwd=desk,
        env=environment(one_url),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        eventually(lambda: [job.id for job in Queue("orders").jobs("waiting")] == ["left"])
    finally:
        relay.terminate()
        said, _ = relay.communicate(timeout=60)
    assert relay.returncode == 0, said
    assert "the relay of bide.contrib.django.outbox:outbox stopped after 1 row" in said
    assert manage(desk, "bide_relay", "--burst", url=one_url).stdout == "0 rows sent.\n"
    usage = manage(desk, "help", "bide_relay", url=one_url).stdout
    assert usage.startswith("Usage: manage.py bide outbox relay [OPTIONS] [OUTBOX]\n")


@pytest.mark.slow
def test_a_worker_of_the_project_relays(desk: Path, one_url: str) -> None:
    worker = subprocess.Popen(
        [sys.executable, "manage.py", "bide", "worker"],
        cwd=desk,
        env=environment(one_url),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        eventually(lambda: [job.id for job in Queue("orders").jobs("completed")] == ["left"])
    finally:
        worker.terminate()
        said, _ = worker.communicate(timeout=60)
    assert worker.returncode == 0, said
    assert Queue("orders").fetch("left").result == "orders.Order 1"
    assert "cannot be sent: There is no job 'other'" in said


@pytest.mark.slow
def test_rows_of_the_project_are_listed_and_repaired(desk: Path, one_url: str) -> None:
    def rows(*args: str) -> list[tuple[Any, ...]]:
        done = manage(desk, "bide", "outbox", "ls", "--json", *args, url=one_url)
        found = json.loads(done.stdout)["rows"]
        return [(row["number"], row["job_id"], row["refused"]) for row in found]

    assert rows() == [(1, "left", False), (2, "child", False)]
    ages = "from bide.contrib.django.outbox.models import Row; Row.objects.update(written_us=0)"
    manage(desk, "shell", "-v0", "-c", ages, url=one_url)
    doctor = manage(desk, "bide", "doctor", url=one_url, code=1).stdout
    assert "run a relay: `manage.py bide worker`\n" in doctor
    assert manage(desk, "bide_relay", "--burst", url=one_url).stdout == "1 row sent.\n"
    assert rows("--refused") == rows() == [(2, "child", True)]
    doctor = manage(desk, "bide", "doctor", url=one_url, code=1).stdout
    assert "`manage.py bide outbox ls --refused` shows the errors\n" in doctor
    Queue("orders").enqueue("orders.tasks:ship", 3, job_id="other")
    manage(desk, "bide", "outbox", "retry", "1", url=one_url, code=3)
    retried = manage(desk, "bide", "outbox", "retry", "2", url=one_url)
    assert retried.stdout == "1 row will be sent again.\n"
    assert rows() == [(2, "child", False)]
    deleted = manage(desk, "bide", "outbox", "delete", "--yes", "2", url=one_url)
    assert deleted.stdout == "1 row deleted.\n"
    assert rows() == []


@pytest.mark.slow
def test_dev_relays_the_rows_of_the_project(desk: Path, one_url: str) -> None:
    program = """
import os, time
os.environ["DJANGO_SETTINGS_MODULE"] = "shop.settings"
import django
django.setup()
from orders.tasks import queue
while not (done := queue.jobs("completed")):
    time.sleep(0.05)
print("found", done[0].id, done[0].result, flush=True)
"""
    said = dev_until(desk, program, "found ", "ended (")
    assert "found left orders.Order 1\n" in said


@pytest.mark.slow
def test_its_web_shows_the_rows(desk: Path, one_url: str) -> None:
    def shown(*args: str) -> list[tuple[str, list[str]]]:
        process = subprocess.Popen(
            [sys.executable, "manage.py", "bide", "web", "--listen", "0", *args],
            cwd=desk,
            env=environment(one_url),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        with process.stdout as lines:
            at = re.search(r"http://127.0.0.1:\d+/", lines.readline())
            try:
                assert at is not None
                with urlopen(f"{at[0]}api/outbox") as answer:
                    outboxes = json.load(answer)["outboxes"]
            finally:
                process.terminate()
                process.wait(60)
        return [(its["name"], [row["job_id"] for row in its["waiting_rows"]]) for its in outboxes]

    assert shown() == [("bide.contrib.django.outbox:outbox", ["left", "child"])]
    assert shown("-q", "orders") == [], "rows are of all queues, and one queue is asked for"


@pytest.mark.slow
def test_the_dashboard_of_the_project_shows_its_rows(desk: Path, one_url: str) -> None:
    program = """
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django.contrib.auth.models import User
from django.test import Client
client = Client()
client.force_login(User.objects.create_user("root", is_staff=True, is_superuser=True))
(found,) = client.get("/jobs/api/outbox").json()["outboxes"]
print(found["name"], [row["job_id"] for row in found["waiting_rows"]])
form = {"content_type": "application/x-www-form-urlencoded",
        "headers": {"origin": "http://testserver"}}
print(client.post("/jobs/do", f"verb=delete-row&outbox={found['name']}&row=2", **form).status_code)
(found,) = client.get("/jobs/api/outbox").json()["outboxes"]
print([row["job_id"] for row in found["waiting_rows"]])
"""
    done = manage(desk, "shell", "-v0", "-c", program, url=one_url)
    assert done.stdout.splitlines() == [
        "bide.contrib.django.outbox:outbox ['left', 'child']",
        "303",
        "['left']",
    ]


@pytest.mark.slow
def test_an_outbox_without_its_tables_or_settings(desk: Path, one_url: str) -> None:
    manage(desk, "migrate", "-v0", "bide_outbox", "zero", url=one_url)
    worker = manage(desk, "bide", "worker", "--burst", url=one_url, code=1).stderr
    assert "(no such table: bide_outbox); start it, and run `manage.py migrate`.\n" in worker
    assert "Traceback" not in worker
    doctor = manage(desk, "bide", "doctor", url=one_url, code=1).stdout
    assert "start it, and run `manage.py migrate`" in doctor
    alone = bide(desk, "outbox", "ls", "bide.contrib.django.outbox:outbox")
    assert "run the command as `manage.py bide ...`" in error_of(alone, 2)


@pytest.mark.slow
def test_dev_serves_them_and_shows_a_mistake(project: Path, one_url: str) -> None:
    tasks = project / "orders/tasks.py"
    program = "import os; os.environ['DJANGO_SETTINGS_MODULE'] = 'shop.settings'\n"
    program += "import django; django.setup()\nfrom orders.tasks import ship\n"
    program += "print(ship.enqueue(7).wait(60), flush=True)\nimport os, signal, time\n"
    program += f"open({str(tasks)!r}, 'a').write(')')\ntime.sleep(600)"
    said = dev_until(project, program, "no worker runs until")
    assert "orders.Order 7\n" in said
    assert "SyntaxError: unmatched ')'\n" in said


@pytest.mark.slow
def test_the_dashboard_is_for_staff(project: Path, one_url: str) -> None:
    program = """
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django.contrib.auth.models import User
from django.test import Client
client = Client(enforce_csrf_checks=True)
answer = client.get("/jobs/queues")
print(answer.status_code, answer.headers["location"])
for name in ("nobody", "staff", "root"):
    user = User.objects.create_user(name, is_staff=name != "nobody", is_superuser=name == "root")
    client.force_login(user)
    form = {"content_type": "application/x-www-form-urlencoded",
            "headers": {"origin": "http://testserver"}}
    print(name, client.get("/jobs/queues").status_code,
          client.post("/jobs/do", "verb=pause&q=mail", **form).status_code)
"""
    Queue("mail").enqueue("orders.tasks:receipt", 3)
    done = manage(project, "shell", "-v0", "-c", program, url=one_url)
    assert done.stdout.splitlines() == [
        "302 /accounts/login/?next=/jobs/queues",
        "nobody 403 403",
        "staff 200 403",
        "root 200 303",
    ]
    assert Queue("mail").counts().paused


@pytest.mark.parametrize(
    ("given", "left"),
    [
        (["worker", "--settings", "shop.dev", "-q", "a"], ["worker", "-q", "a"]),
        (["--settings=shop.dev", "--pythonpath=src", "info"], ["info"]),
        (
            ["dev", "--", "runserver", "--settings", "x"],
            ["dev", "--", "runserver", "--settings", "x"],
        ),
        (["worker", "--settings"], ["worker"]),
    ],
)
def test_options_that_django_has_read_are_left_out(given: list[str], left: list[str]) -> None:
    assert without_django(given) == left


def test_the_settings_of_tasks_are_checked_though_django_tasks_is_no_application(
    project: Path,
) -> None:
    manage(project, "check", url=None)
    settings = project / "shop" / "settings.py"
    settings.write_text(settings.read_text().replace("OPTIONS = {}", "OPTIONS = {'OUTBOX': True}"))
    found = manage(project, "check", url=None, code=1).stderr
    assert 'add "bide.contrib.django.outbox" to INSTALLED_APPS' in found
    assert found.count("bide.E001") == 1


@pytest.fixture
def get(one_url: str) -> Iterator[Any]:
    def get(path: str, role: str | None, **more: Any) -> Any:
        request = RequestFactory().get(f"/jobs/{path}", SERVER_NAME="testserver", **more)
        request.user = SimpleNamespace(is_authenticated=True)
        return dashboard(request, path, role=lambda request: role)

    _page.cache_clear()
    with override_settings(ALLOWED_HOSTS=["testserver"]):
        yield get
        _on_loop(_closed(_page()))
    _page.cache_clear()


async def _closed(page: Any) -> None:
    """Close its connections, as a server does at its end."""
    async with page.router.lifespan_context(page):
        pass


def test_the_dashboard_answers_below_its_path(get: Any) -> None:
    Queue("letters").enqueue("a:b", delay=3600)
    page = get("queues", "viewer")
    assert page.status_code == 200
    text = page.content.decode()
    assert 'href="/jobs/queues"' in text
    assert "letters" in text
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.headers["x-frame-options"] == "DENY"
    assert get("api/queues", "viewer").headers["content-type"] == "application/json"
    style = text.partition('href="/jobs/static/')[2].partition('"')[0]
    assert get(f"static/{style}", "viewer").status_code == 200
    assert get("nothing", "viewer").status_code == 404


def test_it_has_no_live_stream_and_is_not_for_others(get: Any) -> None:
    assert get("api/live", "viewer").status_code == 204
    assert 'data-live=""' in get("queues", "viewer").content.decode()
    with pytest.raises(PermissionDenied):
        get("queues", None)


def test_a_page_of_another_site_cannot_read_it(get: Any) -> None:
    assert get("api/queues", "viewer", headers={"origin": "http://evil"}).status_code == 403
