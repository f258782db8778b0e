"""Masks: what hides secrets in what the command line and the dashboard show."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bide import DelayQueue, Queue, UsageError
from bide.client import config
from bide.views.job import HIDDEN, mask_secrets, read_mask
from bide.web import app
from tests.support.console import bide, error_of, said
from tests.support.serving import serve

SHOP = """
import bide

queue = bide.Queue("mail")

@queue.task(name="log_in")
def log_in(user, password):
    return {"user": user, "token": "t0ken"}

@queue.task(name="pay_card")
def pay_card(card):
    raise ValueError(f"card {card} was declined")

def hide_cards(task, kind, value):
    if task == "pay_card":
        return value.replace("visa4111", "****") if kind == "error" else "•••"
    return value

def odd(task, kind, value):
    raise KeyError(kind)
"""
FILE = """
[tool.bide]
{}
[tool.bide.worker]
modules = ["shop"]
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP, "utf-8")
    (tmp_path / "pyproject.toml").write_text(FILE.format(""))
    return tmp_path


@pytest.fixture
def mail(one_url: str) -> Iterator[Queue]:
    queue = Queue("mail", url=one_url)
    yield queue
    queue.close()


def login(mail: Queue) -> str:
    return mail.enqueue("log_in", user="ada", password="hunter2", delay="1h", meta={"jwt": "x"}).id


def set_mask(home: Path, mask: str) -> None:
    (home / "pyproject.toml").write_text(FILE.format(f'mask = "{mask}"'))


# A variable has the command run in a process of its own: `shop` is another module in each test.
ALONE = {"PYTHONDONTWRITEBYTECODE": "1"}


def test_text_hides_secrets_and_json_is_complete_unless_a_mask_is_set(
    home: Path, mail: Queue
) -> None:
    id = login(mail)
    shown = said(bide(home, "jobs", "show", id, url=mail.url))
    assert 'user="ada", password="•••"' in shown
    assert '{"jwt": "•••"}' in shown
    done = bide(home, "jobs", "show", id, "--json", url=mail.url)
    (job,) = json.loads(said(done))["jobs"]
    assert (job["kwargs"]["password"], job["meta"], job["masked"]) == ("hunter2", {"jwt": "x"}, [])
    assert done.stderr == ""
    done = bide(home, "jobs", "show", id, "--json", url=mail.url, BIDE_MASK="secrets")
    (job,) = json.loads(said(done))["jobs"]
    assert job["kwargs"] == {"user": "ada", "password": HIDDEN}
    assert job["masked"] == ["description", "kwargs", "meta"]
    assert "hunter2" not in json.dumps(job)
    assert done.stderr == "The mask hides values of 1 job; --mask none prints them.\n"
    args = ("jobs", "show", id, "--mask", "none")
    assert "hunter2" in said(bide(home, *args, url=mail.url, BIDE_MASK="secrets"))


def test_a_positional_argument_has_the_name_that_its_module_gives_it(
    home: Path, mail: Queue
) -> None:
    id = mail.enqueue("log_in", "ada", "hunter2", delay="1h").id
    shown = said(bide(home, "jobs", "show", id, url=mail.url, **ALONE))
    assert '"ada", "•••"' in shown


def test_filters_of_the_command_line_see_what_the_mask_hides(home: Path, mail: Queue) -> None:
    id = login(mail)
    args = ("jobs", "cancel", "-q", "mail", "--arg", "password=hunter2", "--yes")
    assert said(bide(home, *args, url=mail.url, BIDE_MASK="secrets")) == "1 job cancelled.\n"
    assert mail.fetch(id).state == "cancelled"


def test_a_function_of_ones_own_also_masks_errors(home: Path, mail: Queue) -> None:
    set_mask(home, "shop:hide_cards")
    id = mail.enqueue("pay_card", "visa4111").id
    said(bide(home, "worker", "--burst", url=mail.url))
    shown = said(bide(home, "jobs", "show", id, url=mail.url, **ALONE))
    assert "ValueError: card **** was declined" in shown
    assert "arguments  •••" in shown
    assert "visa4111" not in shown
    listed = said(bide(home, "jobs", "ls", url=mail.url, **ALONE))
    assert "card **** was declined" in listed
    done = bide(home, "jobs", "ls", "--json", url=mail.url, **ALONE)
    (job,) = json.loads(said(done))["jobs"]
    assert job["error"]["message"] == "card **** was declined"
    assert (job["description"], job["masked"]) == ("pay_card(•••)", ["error", "description"])
    assert "1 job" in done.stderr
    (job,) = json.loads(said(bide(home, "jobs", "show", id, "--json", url=mail.url, **ALONE)))[
        "jobs"
    ]
    assert "visa4111" not in json.dumps(job), [k for k in job if "visa4111" in json.dumps(job[k])]
    assert "card **** was declined" in job["error"]["traceback"]


def test_the_error_of_a_job_that_was_waited_for_is_masked(home: Path, mail: Queue) -> None:
    set_mask(home, "shop:hide_cards")
    mail.enqueue("pay_card", "visa4111", job_id="a")
    said(bide(home, "worker", "--burst", url=mail.url))
    args = ("enqueue", "pay_card", "x", "-q", "mail", "--id", "a", "--wait")
    done = bide(home, *args, url=mail.url, **ALONE)
    assert "Job a (pay_card) failed: ValueError: card **** was declined" in done.stderr
    as_json = bide(home, *args, "--json", url=mail.url, **ALONE)
    assert (done.returncode, as_json.returncode) == (1, 1)
    assert "visa4111" not in done.stdout + done.stderr + as_json.stdout + as_json.stderr


def test_events_of_a_deleted_job_hide_its_error_from_a_mask_by_task(
    home: Path, mail: Queue
) -> None:
    with mail.events(name="keeps") as events:
        start = events.after
        job = mail.enqueue("pay_card", "visa4111")
        said(bide(home, "worker", "--burst", url=mail.url))
    args = ("events", "-q", "mail", "--after", start, "-k", "failed", "--timeout", "0")
    job.delete()
    assert "visa4111" in said(bide(home, *args, url=mail.url)), "its name is no secret's"
    set_mask(home, "shop:hide_cards")
    hidden = said(bide(home, *args, url=mail.url, **ALONE))
    assert "ValueError: •••" in hidden
    assert "visa4111" not in hidden


def test_data_is_masked_in_lists(home: Path, one_url: str) -> None:
    pile = DelayQueue("pile", url=one_url)
    pile.push({"user": 1, "api_key": "k"}, id="one", delay="1h")
    pile.close()
    for args in (("jobs", "ls"), ("jobs", "show", "one"), ("upcoming",)):
        assert '{"user": 1, "api_key": "•••"}' in said(bide(home, *args, url=one_url))
    assert '"api_key": "k"' in said(bide(home, "jobs", "ls", "--mask", "none", url=one_url))


def test_a_result_that_was_waited_for_is_masked_as_text(home: Path, mail: Queue) -> None:
    job = mail.enqueue("log_in", user="ada", password="hunter2", job_id="a")
    said(bide(home, "worker", "--burst", url=mail.url))
    assert job.refresh().state == "completed"
    shown = said(bide(home, "jobs", "show", "a", url=mail.url, **ALONE))
    assert '{"user": "ada", "token": "•••"}' in shown
    args = ("enqueue", "log_in", "ada", "x", "-q", "mail", "--id", "a", "--wait")
    assert '{"user": "ada", "token": "•••"}' in said(bide(home, *args, url=mail.url))
    raw = said(bide(home, *args, "--mask", "none", url=mail.url))
    assert '{"user": "ada", "token": "t0ken"}' in raw


def test_a_mask_that_fails_hides_the_value_and_says_so_once(home: Path, mail: Queue) -> None:
    id = login(mail)
    done = bide(home, "jobs", "show", id, "--mask", "shop:odd", url=mail.url, **ALONE)
    shown = said(done)
    assert "hunter2" not in shown
    assert done.stderr.count("raised KeyError('") == 1
    assert "--mask 'shop:odd' raised" in done.stderr


@pytest.mark.parametrize(
    ("mask", "says"),
    [
        ("secret", "--mask 'secret' is not a mask; did you mean 'secrets'?"),
        ("all", "--mask 'all' is not a mask; write secrets, none or MODULE:FUNCTION."),
        (
            "shop.hide_cards",
            "--mask 'shop.hide_cards' is not a mask; did you mean 'shop:hide_cards'?",
        ),
        ("shop/masks.py:hide", "write secrets, none or MODULE:FUNCTION."),
        ("nowhere:mask", "--mask 'nowhere:mask': The module 'nowhere' cannot be imported"),
        ("shop:hide", "the module 'shop' has no 'hide'; write MODULE:FUNCTION"),
        ("shop:queue", "is not a mask; give a plain function that takes task, kind and value"),
        ("shop:pay_card", "is not a mask; give a plain function that takes task, kind and value"),
    ],
)
def test_what_is_no_mask_is_refused_in_one_sentence(
    home: Path, mail: Queue, mask: str, says: str
) -> None:
    done = bide(home, "jobs", "ls", "--mask", mask, url=mail.url, **ALONE)
    assert says in error_of(done, 2)


def test_an_error_names_the_place_of_the_setting(home: Path, mail: Queue) -> None:
    done = bide(home, "jobs", "ls", url=mail.url, BIDE_MASK="sekrets")
    assert "$BIDE_MASK = 'sekrets' is not a mask; did you mean 'secrets'?" in error_of(done, 2)
    set_mask(home, "sekrets")
    done = bide(home, "web", "--listen", "0", url=mail.url, **ALONE)
    assert "mask in [tool.bide] of " in (line := error_of(done, 2))
    assert "pyproject.toml = 'sekrets' is not a mask" in line
    assert "'sekrets' is not a mask" in error_of(bide(home, "dev", "shop.py"), 2)
    set_mask(home, "")
    done = bide(home, "jobs", "ls", url=mail.url)
    assert "must be text that is not empty" in error_of(done, 2)


@pytest.mark.parametrize("given", [7, "x:y:z", "os:sep", mask_secrets.__doc__, lambda task: task])
def test_what_is_no_mask_is_refused_by_the_application(given: Any) -> None:
    with pytest.raises(UsageError, match="mask="):
        app(mask=given, local_role="viewer")


def test_coroutine_functions_are_refused() -> None:
    async def mask(task: str, kind: str, value: Any) -> Any: ...

    with pytest.raises(UsageError, match="give a plain function"):
        read_mask(mask)


def test_the_dashboard_has_the_mask_of_the_settings(
    mail: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    id = login(mail)

    def kwargs(**options: Any) -> Any:
        with serve(app(url=mail.url, local_role="viewer", **options)) as page:
            return page.get("/api/job", q="mail", id=id).json["kwargs"]

    assert kwargs()["password"] == HIDDEN
    monkeypatch.setenv("BIDE_MASK", "none")
    assert kwargs()["password"] == "hunter2"
    assert kwargs(mask="secrets")["password"] == HIDDEN
    assert kwargs(mask=lambda task, kind, value: {1}) == "{1}"
    caplog.set_level(logging.WARNING, "bide.views.job")
    assert kwargs(mask=lambda task, kind, value: value["nothing"]) == HIDDEN
    assert caplog.text.count("raised KeyError(") == 1
    config._read_nearest.cache_clear()


def test_failures_are_grouped_and_changed_by_the_masked_error(home: Path, mail: Queue) -> None:
    for card in ("visa4111x", "visa4111y"):
        mail.enqueue("pay_card", card)
    said(bide(home, "worker", "--burst", url=mail.url))

    def mask(task: str, kind: str, value: Any) -> Any:
        return "declined" if kind == "error" else value

    with serve(app(url=mail.url, local_role="operator", mask=mask)) as desk:
        text = desk.get("/failures").text
        assert "visa4111" not in text
        (group,) = desk.get("/api/failures").json["groups"]
        assert (group["kind"], group["count"]) == ("ValueError: declined", 2)
        assert desk.get("/api/jobs", error="visa4111").json["jobs"] == []
        form = {"verb": "retry", "state": "failed", "kind": group["kind"]}
        assert "2 jobs retried" in desk.post(**form, sure="2").text
