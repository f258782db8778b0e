"""What is imported without its extra says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "without", "says"),
    [
        ("import bide.contrib.rq", "rq", "bide.contrib.rq needs RQ"),
        ("from bide.contrib.rq.queue import DelayQueue", "rq", "bide.contrib.rq needs RQ"),
        ("import bide.contrib.django", "django", "bide.contrib.django needs Django"),
        ("from bide.contrib.otel import Tracing", "opentelemetry", "otel needs OpenTelemetry"),
        ("from bide.contrib.sqlalchemy import Outbox", "sqlalchemy", "needs SQLAlchemy 2"),
        ("from bide.web import app", "starlette", "bide.web needs Starlette, uvicorn and Jinja"),
        ("from bide.web import app", "uvicorn", "bide.web needs Starlette, uvicorn and Jinja"),
        ("from bide.web import app", "jinja2", "bide.web needs Starlette, uvicorn and Jinja"),
    ],
)
def test_what_is_missing_is_named_with_the_command_that_installs_it(
    code: str, without: str, says: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules[{without!r}] = None; {code}"],
        capture_output=True,
        text=True,
        timeout=60,
    )
    extras = dict.fromkeys(("starlette", "uvicorn", "jinja2"), "web") | {"opentelemetry": "otel"}
    extra = extras.get(without, without)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: ")
    assert last.endswith(f"{says}: run `pip install 'bide[{extra}]'`.")
