"""Reading a page: what of it can be run, and what it says that this prints.

A page is Markdown. Its fenced blocks are steps, in the order in which they stand:

- `python` is run, all blocks of a page in one namespace. One whose first line is a comment that is
  a file's name (`# shop.py`) is written to that file instead, and can be imported from then on;
  so are blocks of other languages that begin so (`# pyproject.toml`).
- `console` holds commands, each after `$ `, and below each what it prints. Those that begin with
  `bide` or `python` are run. `export NAME=...` sets the variable to the value that a program of the
  page has printed for it. `bide dev`, and a `bide worker` without `--burst`, go on until the
  page ends.
- `output` is what the block before it prints.

HTML comments, which readers do not see, say the rest: `<!-- python: ... -->` and
`<!-- run: bide ... -->` are steps that the page does not show; `<!-- skip: why -->` lets the next
block be; `<!-- needs: package -->` runs the next block, or hidden step, only where it is installed;
what stands between `<!-- figures: ... -->` and `<!-- end: figures -->` is made of measurements, and
between `<!-- generated: ... -->` and `<!-- end: generated -->` of the code.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]

RUNNABLE: Final = ("bide", "python", "echo", "export")

_FENCE: Final = re.compile(r"( *)(`{3,})([^`]*)")
_COMMENT: Final = re.compile(r"<!--(.*?)-->", re.DOTALL)
_FILE: Final = re.compile(r"# ([\w./-]+\.(?:py|toml))")


class BadPage(Exception):
    """A page that cannot be meant; the message says where."""


@dataclass
class Step:
    """Something to do; `needs` is a package without which it is left out."""

    line: int
    needs: str = field(default="", kw_only=True)


@dataclass
class File(Step):
    """Write a file."""

    name: str
    text: str


@dataclass
class Python(Step):
    """Run code; `output` is what it must print, where the page says so."""

    code: str
    output: str | None = None


@dataclass
class Command(Step):
    """Run a command line."""

    text: str
    output: str | None = None
    may_fail: bool = False
    """Whether the page shows its exit code, with `echo $?`."""

    @property
    def words(self) -> list[str]:
        return shlex.split(self.text, comments=True)

    @property
    def stays(self) -> bool:
        """Whether it goes on until it is stopped."""
        does = self.words[:2] in (["bide", "worker"], ["bide", "dev"])
        return does and not {"--burst", "--help"} & {*self.words}


@dataclass
class Skipped(Step):
    """A block that is not run, and why."""

    reason: str


@dataclass
class _Block:
    line: int
    language: str
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def steps(text: str) -> list[Step]:
    """All that a page does.

    Raises:
        BadPage: it has a comment or a block that cannot be meant.
    """
    found: list[Step] = []
    reason, needs = "", ""
    for part in _parts(text):
        before = len(found)
        if isinstance(part, _Mark):
            reason, needs = (part.text, "") if part.word == "skip" else ("", part.text)
            continue
        if isinstance(part, Step):
            found.append(part)
        elif reason:
            found.append(Skipped(part.line, reason))
        else:
            _add(found, part)
        for step in found[before:]:
            step.needs = needs
        reason, needs = "", ""
    return found


def code_of(step: Step) -> str:
    """The Python code of a step; empty where it has none."""
    if isinstance(step, File):
        return step.text if step.name.endswith(".py") else ""
    return step.code if isinstance(step, Python) else ""


@dataclass
class _Mark:
    """What a comment says of the block after it."""

    word: str
    text: str


def _parts(text: str) -> Iterator[Step | _Block | _Mark]:
    block: _Block | None = None
    indent, fence = "", ""
    lines = text.splitlines()
    skip_to = 0
    for number, line in enumerate(lines, 1):
        if number < skip_to:
            continue
        if block is not None:
            if line.strip() == fence:
                yield block
                block = None
            else:
                block.lines.append(line.removeprefix(indent))
        elif match := _FENCE.fullmatch(line):
            indent, fence, language = match[1], match[2], match[3].strip()
            block = _Block(number, language)
        elif line.startswith("<!--"):
            comment = _COMMENT.match("\n".join(lines[number - 1 :]))
            if comment is None:
                raise BadPage(f"line {number}: a comment that does not end")
            skip_to = number + comment[0].count("\n") + 1
            yield from _said(comment[1], number)
    if block is not None:
        raise BadPage(f"line {block.line}: a block that does not end")


def _said(comment: str, line: int) -> Iterator[Step | _Mark]:
    word, colon, rest = comment.strip().partition(":")
    if not colon or word not in ("python", "run", "skip", "needs", "figures", "generated", "end"):
        known = "python:, run:, skip:, needs:, or figures:, generated: and end: around what is made"
        raise BadPage(f"line {line}: a comment is {known}, not {comment!r}")
    if word in ("figures", "generated", "end"):
        return
    if word == "python":
        yield Python(line, rest.strip("\n") if "\n" in rest else rest.strip())
    elif word == "run":
        yield from (Command(line, text.strip()) for text in rest.strip().splitlines())
    else:
        yield _Mark(word, rest.strip())


def _add(found: list[Step], block: _Block) -> None:
    first = _FILE.fullmatch(block.lines[0].strip()) if block.lines else None
    if first and not PurePosixPath(first[1]).is_absolute():
        found.append(File(block.line, first[1], block.text))
    elif block.language == "python":
        found.append(Python(block.line, block.text))
    elif block.language == "console":
        found += _commands(block)
    elif block.language == "output":
        last = found[-1] if found else None
        if not isinstance(last, Python | Command) or last.output is not None:
            raise BadPage(f"line {block.line}: output of nothing")
        last.output = block.text
    elif block.language in ("bash", "sh", "shell", "pycon", ""):
        raise BadPage(f"line {block.line}: say `console`, `python`, `output` or `text`")


def _commands(block: _Block) -> Iterator[Step]:
    command: Command | None = None
    shown: list[str] = []
    for number, line in enumerate(block.lines, block.line + 1):
        if line.startswith("$ "):
            if command is not None:
                command.may_fail = line == "$ echo $?"
                yield _with_output(command, shown)
            command, shown = Command(number, line[2:]), []
            if command.words[0] not in RUNNABLE:
                raise BadPage(f"line {number}: {command.words[0]} is not run; say why with `skip:`")
        elif command is None:
            raise BadPage(f"line {number}: a command begins with `$ `")
        else:
            shown.append(line)
    if command is not None:
        yield _with_output(command, shown)


def _with_output(command: Command, shown: list[str]) -> Command:
    text = "\n".join(shown).strip("\n")
    if text:
        command.output = text + "\n"
    return command
