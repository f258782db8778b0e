"""Collects what each page of `docs/coming-from` says is tested where into its index.

`make docs` runs it; a test holds the index equal to what this makes.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "coming-from"
PAGES = (
    "delay-rq",
    "redis-lists",
    "rq",
    "celery",
    "dramatiq",
    "arq",
    "docket",
    "data-queue",
    "bull",
)
HEAD = "| feature | here | test |\n|---|---|---|\n"
MARK = "## Every feature, and the test that shows it\n"


def rows(page: str) -> list[str]:
    """The rows of a page's last table."""
    _, found, table = (FOLDER / f"{page}.md").read_text("utf-8").rpartition(HEAD)
    if not found:
        raise SystemExit(f"{page}.md does not end with a table of features.")
    return [line for line in table.splitlines() if line.startswith("|")]


def title(page: str) -> str:
    """The first line of a page."""
    return (FOLDER / f"{page}.md").read_text("utf-8").partition("\n")[0].removeprefix("# ")


def index() -> str:
    """The index, made anew from its own beginning."""
    kept = (FOLDER / "index.md").read_text("utf-8").partition(MARK)[0]
    parts = [kept, MARK]
    for page in PAGES:
        parts.append(f"\n### [{title(page)}]({page}.md)\n\n{HEAD}")
        parts += [f"{row}\n" for row in rows(page)]
    parts.append(f"\n```{{toctree}}\n:hidden:\n\n{chr(10).join(PAGES)}\n```\n")
    return "".join(parts)


if __name__ == "__main__":
    (FOLDER / "index.md").write_text(index(), "utf-8")
