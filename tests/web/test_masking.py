"""What the page hides of payloads unless told otherwise."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from bide import Queue
from bide.tasks import task
from bide.web import mask_secrets
from tests.support.serving import Page

queue = Queue("mail")
HIDDEN = "•••"


@queue.task(name="charge")
def charge(order: int, card_number: str, *tokens: str) -> None: ...


def login(user: str, pwd: str) -> None: ...


class Shop:
    def pay(self, order: int, secret: str) -> None: ...

    @classmethod
    def open(cls, session_id: str, order: int) -> None: ...

    @staticmethod
    def close(order: int, api_key: str) -> None: ...


@pytest.mark.parametrize(
    "name",
    [
        *("X-Api-Key", "private-key", "card-number", "cardNo", "Cookie", "set-cookie", "pwd"),
        *("access_key", "AWS_SECRET_ACCESS_KEY", "session", "sessionId", "db.passwd", "apiKey"),
        *("password", "refresh token", "Authorization", "credentials", "CVV", "passphrase"),
        *("pass", "DB_PASS", "auth", "basic-auth", "jwt", "otp"),
    ],
)
def test_what_sounds_like_a_secret_is_hidden_however_it_is_written(name: str) -> None:
    assert mask_secrets("a:b", "kwargs", {"x": [{name: "s3cr3t"}]}) == {"x": [{name: HIDDEN}]}


@pytest.mark.parametrize(
    "name", ["order", "key", "keyboard", "card", "monkey", "compass", "pin", "author"]
)
def test_what_does_not_is_shown(name: str) -> None:
    assert mask_secrets("a:b", "meta", {name: 1}) == {name: 1}


@pytest.mark.parametrize(
    ("name", "args", "shown"),
    [
        ("charge", [7, "4111", "a", {"b": 1}], [7, HIDDEN, HIDDEN, HIDDEN]),
        (f"{__name__}:login", ["ada", "hunter2", 3], ["ada", HIDDEN, 3]),
        (f"{__name__}:Shop.pay", [{}, 7, "s"], [{}, 7, HIDDEN]),
        (f"{__name__}:Shop.open", ["s", 7], [HIDDEN, 7]),
        (f"{__name__}:Shop.close", [7, "s"], [7, HIDDEN]),
        (f"{__name__}:Shop", [7, {"pwd": "s"}], [7, {"pwd": HIDDEN}]),
        (f"{__name__}:queue.name", [7], [7]),
        ("unknown", [7], [7]),
    ],
)
def test_arguments_by_position_have_the_names_of_a_known_function(
    name: str, args: list[Any], shown: list[Any]
) -> None:
    assert mask_secrets(name, "args", args) == shown


def test_no_name_in_a_payload_imports_or_runs_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sleeping.py").write_text("def login(pwd): ...\n")
    (tmp_path / "lazy.py").write_text(
        "def __getattr__(name):\n    import sleeping\n    return getattr(sleeping, name)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    task.import_module("lazy")
    for name in ("sleeping:login", "lazy:login"):
        assert mask_secrets(name, "args", ["x"]) == ["x"]
    assert "sleeping" not in sys.modules
    del sys.modules["lazy"]


def test_a_filter_does_not_find_what_the_mask_hides(page: Page, mail: Queue) -> None:
    job = mail.enqueue("shop:login", user_id=1, password="hunter2", delay=60, meta={"token": "t"})

    def found(**filter: str) -> list[str]:
        return [each["id"] for each in page.get("/api/jobs", **filter).json["jobs"]]

    assert found(arg="user_id=1") == [job.id]
    assert found(arg="password=hunter2") == found(meta="token=t") == []
    assert found(group="g") == []
    assert page.get("/api/jobs", arg="user_id").status == 400
