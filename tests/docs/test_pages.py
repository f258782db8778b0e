"""Every page runs: its code, its commands, and what it shows that these print."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, BadPage, Command, File, Python, Skipped, Step, steps
from tests.support.compare import differs

NAMES = [str(page.relative_to(ROOT)) for page in PAGES]
NOT_RUN = {
    "docs/coming-from/rq.md": 2,
    "docs/examples.md": 1,
    "docs/howto/develop.md": 1,
    "docs/howto/outbox.md": 12,  # needs django_tasks
    "docs/howto/page.md": 2,
    "docs/howto/producers.md": 1,
    "docs/howto/resources.md": 1,
    "docs/howto/sentry.md": 4,  # needs sentry_sdk
    "docs/howto/web.md": 15,
    "docs/index.md": 1,
    "docs/testing.md": 3,
    "docs/tutorial/index.md": 1,
    "docs/tutorial/own-server.md": 2,
    "docs/tutorial/worker.md": 1,
}
"""Pages with blocks that are not run, and how many; each says why where it stands."""


def _steps(name: str) -> list[Step]:
    return steps((ROOT / name).read_text("utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [n for n in NAMES if any(not isinstance(s, Skipped) for s in _steps(n))]
)
def test_what_a_page_shows_is_so(name: str, tmp_path: Path, one_url: str) -> None:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("BIDE_")}
    done = subprocess.run(
        [sys.executable, "-c", f"from tests.docs.run_page import main; main({name!r})"],
        cwd=tmp_path,
        env=environment
        | {"BIDE_URL": one_url, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
        | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_what_is_not_run_is_known() -> None:
    """So that nobody silences a page unseen."""
    found = Counter(n for n in NAMES for s in _steps(n) if isinstance(s, Skipped) or s.needs)
    assert found == NOT_RUN


def test_what_is_not_run_says_why() -> None:
    reasons = [s.reason for n in NAMES for s in _steps(n) if isinstance(s, Skipped)]
    assert all(len(reason.split()) >= 3 for reason in reasons), reasons


# -- the reader of pages itself


def test_a_page_is_read_in_order() -> None:
    page = """\
# Title

<!-- python:
import os
-->

```python
# shop.py
x = 1
```

```python
print("one")
```

```output
one
```

```console
$ bide info
nothing
$ bide worker shop -q mail
```

<!-- skip: a server of your own -->

```console
$ redis-server
```

```ini
[Unit]
```
"""
    assert steps(page) == [
        Python(3, "import os"),
        File(7, "shop.py", "# shop.py\nx = 1\n"),
        Python(12, 'print("one")\n', "one\n"),
        Command(21, "bide info", "nothing\n"),
        Command(23, "bide worker shop -q mail"),
        Skipped(28, "a server of your own"),
    ]


@pytest.mark.parametrize(
    "page",
    [
        "<!-- pyhton: x = 1 -->",
        "<!-- skip: what",
        "```python\nx = 1",
        "```output\n1\n```",
        "```bash\nbide info\n```",
        "```\nbide info\n```",
        "```console\nbide info\n```",
        "```console\n$ rm -rf /\n```",
    ],
)
def test_a_page_that_cannot_be_meant_is_an_error(page: str) -> None:
    with pytest.raises(BadPage):
        steps(page)


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a b\n", "a   b\n", True),
        ("a\n", "a\nb\n", False),
        ("a\n...\n", "a\nb\n", True),
        ("...\nc", "a\nb\nc\n", True),
        ("a\nc", "a\nb\nc\n", False),
        ("job cr5zz1yhc2x6pk3brtb2 done", "job dr5zz1yhc2x6pk3brtb9 done", True),
        ("in 3.4ms, at 12:30:00.004+0000", "in 1m2s, at 09:00:01.001+0000", True),
        ("50 ms of 3%, 1.87 MiB", "7 ms of 12.5%, 900 kB", True),
        ("3 jobs", "4 jobs", False),
        ("1 0 1001", "1 0 2001", False),
        ("2,000,036 characters", "2,000,037 characters", False),
        ("order-1042", "order-1043", False),
        ("{'n': 300}", "{'n': 301}", False),
        ("1.20", "1.60", False),
        ("pid 1234", "pid 99", True),
        ("port 1234", "port 99", False),
        ("x (3)", "x (4)", False),
        ("at 2030-01-31", "at never", False),
        ("worker ... serves", "worker a.1 b serves", True),
        ("worker host...: ready", "worker hostess.3: ready", True),
        ("b\na", "a\nb", False),
    ],
)
def test_what_differs_from_run_to_run_may(shown: str, printed: str, same: bool) -> None:
    assert (differs(shown, printed) is None) is same
