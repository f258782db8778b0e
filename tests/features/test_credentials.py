"""Users and passwords from a function, which is asked at each connection."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import redis

from bide import AccessDenied, AsyncQueue, Queue, ServerUnavailable, UsageError, Worker
from bide.client import credentials
from tests.support.console import bide

JOB = "tests.support.jobs:add"


class Tokens(ModuleType):
    """A module whose function returns the password of now."""

    def __init__(self) -> None:
        super().__init__("tokens_of_the_shop")
        self.current: Any = "first"
        self.calls = 0

    def token(self) -> Any:
        self.calls += 1
        if isinstance(self.current, Exception):
            raise self.current
        return self.current


@pytest.fixture
def tokens(direct: redis.Redis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tokens]:
    """The server has a user `app`, whose password is `first`."""
    direct.acl_setuser("app", enabled=True, reset=True, passwords=["+first"])
    server: Any = direct
    server.execute_command("ACL", "SETUSER", "app", "~*", "&*", "+@all")
    made = Tokens()
    monkeypatch.setitem(sys.modules, made.__name__, made)
    credentials._find.cache_clear()
    yield made
    direct.acl_deluser("app")


@pytest.fixture
def url_with(one_url: str) -> Callable[[str], str]:
    """The server's URL with a user and `credentials=`."""

    def add(name: str, user: str = "&username=app") -> str:
        return f"{one_url}{'&' if '?' in one_url else '?'}credentials={name}{user}"

    return add


def change_password(direct: Any, old: str, new: str) -> None:
    """As a server does whose tokens expire: open connections of the user end."""
    direct.execute_command("ACL", "SETUSER", "app", f"<{old}", f">{new}")
    direct.execute_command("CLIENT", "KILL", "USER", "app")


def test_jobs_run_before_and_after_the_token_has_changed(
    tokens: Tokens, url_with: Callable[[str], str], direct: redis.Redis
) -> None:
    with contextlib.closing(Queue("mail", url=url_with("tokens_of_the_shop:token"))) as queue:
        first = queue.enqueue(JOB, 1, 2)
        assert tokens.calls == 1
        tokens.current = "second"
        change_password(direct, "first", "second")
        second = queue.enqueue(JOB, 3, 4)
        assert tokens.calls == 2  # once for each connection
        assert Worker([queue], modules=["tests.support.jobs"]).run(burst=True) == 2
        assert (first.wait(60), second.wait(60)) == (3, 7)


@pytest.mark.anyio
async def test_an_event_loop_asks_too(tokens: Tokens, url_with: Callable[..., str]) -> None:
    tokens.current = ("app", "first")
    queue = AsyncQueue("mail", url=url_with("tokens_of_the_shop:token", ""))
    job = await queue.enqueue(JOB, 1, 2)
    assert (await queue.fetch(job.id)).args == (1, 2)
    assert tokens.calls >= 1
    await queue.close()


def test_a_provider_of_the_client_library(tokens: Tokens, url_with: Callable[..., str]) -> None:
    provider = redis.UsernamePasswordCredentialProvider("app", "first")
    tokens.provider = provider  # type: ignore[attr-defined]
    with contextlib.closing(
        Queue("mail", url=url_with("tokens_of_the_shop:provider", ""))
    ) as queue:
        assert queue.counts().waiting == 0


def test_a_function_that_raises_is_asked_again(
    tokens: Tokens, url_with: Callable[[str], str]
) -> None:
    url = url_with("tokens_of_the_shop:token")
    tokens.current = TimeoutError("the service of tokens is slow")
    with (
        contextlib.closing(Queue("mail", url=url, retry_for=0)) as queue,
        pytest.raises(ServerUnavailable, match="token raised TimeoutError: the service of tokens"),
    ):
        queue.counts()
    with contextlib.closing(Queue("mail", url=url)) as queue:
        tokens.current = "first"
        queue.counts()
        queue.close()
        calls = tokens.calls
        answers = iter([OSError("not yet"), OSError("not yet"), "first"])

        def token() -> Any:
            tokens.calls += 1
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        tokens.token = token  # type: ignore[method-assign]
        credentials._find.cache_clear()
        assert queue.counts().waiting == 0
        assert tokens.calls == calls + 3


def test_a_token_that_the_server_refuses(tokens: Tokens, url_with: Callable[[str], str]) -> None:
    tokens.current = "secret of yesterday"
    queue = Queue("mail", url=url_with("tokens_of_the_shop:token"))
    with contextlib.closing(queue), pytest.raises(AccessDenied) as caught:
        queue.counts()
    assert "yesterday" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "returned", "says"),
    [
        ("tokens_of_the_shop:token", None, "token returned NoneType; return the password as str"),
        ("tokens_of_the_shop:token", ("a", "b", "c"), "token returned tuple; return the password"),
        ("tokens_of_the_shop:gone", "first", r"gone in the URL cannot be imported .*; write"),
        ("no_such_shop:token", "first", r"cannot be imported \(No module named 'no_such_shop'\)"),
        ("tokens_of_the_shop:calls", "first", "is int; name a function that returns the password"),
    ],
)
@pytest.mark.anyio
async def test_names_and_values_that_are_invalid(
    tokens: Tokens, url_with: Callable[[str], str], name: str, returned: Any, says: str
) -> None:
    tokens.current = returned
    queue = Queue("mail", url=url_with(name))
    with contextlib.closing(queue), pytest.raises(UsageError, match=says):
        queue.counts()
    loop_queue = AsyncQueue("mail", url=url_with(name))
    with pytest.raises(UsageError, match=says):
        await loop_queue.counts()
    await loop_queue.close()


def test_commands_import_the_function_from_the_working_directory(
    tokens: Tokens, url_with: Callable[[str], str], tmp_path: Path
) -> None:
    (tmp_path / "shop_auth.py").write_text("def token():\n    return 'first'\n")
    url = url_with("shop_auth:token")
    done = bide(tmp_path, "info", url=url, HOME="/")  # a variable, so a process of its own
    assert (done.stderr, done.returncode) == ("", 0)
    done = bide(tmp_path, "jobs", "ls", "-q", "mail", "-u", url, HOME="/")
    assert "There is no queue 'mail'" in done.stderr
