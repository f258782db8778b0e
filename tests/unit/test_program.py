"""What the program that runs defines itself goes by the module that its file is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bide import UsageError
from bide.model.ids import module_of, program_of
from bide.tasks.registry import task_name

SHOP = """
import multiprocessing, sys
import bide

queue = bide.Queue("mail")

class Refused(Exception):
    pass

def delay(attempt, error):
    return 1

class Mailer:
    def push(self): ...

@queue.task(retry=bide.Retry(1, delay))
def send(to: str) -> str:
    return to

def names():
    policy = bide.Retry(1, delay, on=Refused, never_on="other.Refused")
    typed = {"__name__": "__main__"}
    exec("def typed(): ...", typed)
    try:
        queue.prepare(typed["typed"])
    except bide.UsageError as error:
        typed = "__main__" in str(error)
    mailer = Mailer()
    print(send.name, bide.tasks.registry.task_name(mailer.push), policy.wire(), typed)
    print(policy.decide(1, Refused()), bide.Retry(1, "fixed", on=Refused).decide(1, Refused()))

if __name__ == "__main__":
    names()
    sys.stdout.flush()
    multiprocessing.get_context("spawn").Process(target=names).start()
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "app" / "shop").mkdir(parents=True)
    (tmp_path / "app" / "shop" / "__init__.py").touch()
    (tmp_path / "app" / "shop" / "mail.py").write_text(SHOP)
    (tmp_path / "app" / "alone.py").write_text(SHOP)
    (tmp_path / "app" / "my-app.py").write_text(SHOP)
    (tmp_path / "app" / "shop" / "__main__.py").write_text(SHOP)
    return tmp_path / "app"


@pytest.mark.parametrize(
    ("command", "module"),
    [
        (["alone.py"], "alone"),
        (["shop/mail.py"], "shop.mail"),
        (["-m", "shop.mail"], "shop.mail"),
        (["-m", "alone"], "alone"),
    ],
)
def test_a_program_is_named_by_its_file(shop: Path, command: list[str], module: str) -> None:
    done = subprocess.run(
        [sys.executable, *command], cwd=shop, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    policy = f"[1, '{module}:delay', None, None, None, ('{module}.Refused',), ('other.Refused',)]"
    one = [f"{module}:send {module}:Mailer.push {policy} True", "1.0 1.0"]
    assert done.stdout.splitlines() == [*one, *one]


@pytest.mark.parametrize("command", [["my-app.py"], ["-m", "shop"], ["shop"], ["-c", SHOP]])
def test_a_program_that_no_worker_could_import_is_told_so(shop: Path, command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, *command], cwd=shop, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    fix = "rename my-app.py to the name of a module, such as my_app.py"
    if command != ["my-app.py"]:
        fix = "move it to a module"
    assert f"where a worker cannot import it; {fix}" in done.stderr


def test_a_file_leads_to_the_module_that_it_is(shop: Path) -> None:
    for file, module in {
        "alone.py": "alone",
        "shop/mail.py": "shop.mail",
        "shop/__init__.py": "shop",
        "my-app.py": "my-app",
    }.items():
        assert program_of(str(shop / file)) == (module, str(shop))


def test_what_a_module_defines_is_in_that_module() -> None:
    assert module_of(module_of) == "bide.model.ids"
    assert module_of(UsageError) == "bide.errors"
    assert module_of(3) is None
    assert task_name(module_of) == "bide.model.ids:module_of"
