"""The names in a page's code spans, each looked up in the lists of `lists.py`.

A page is read sentence by sentence, and cell by cell. On pages that set another library's names
beside ours, theirs are told apart by where they stand: in a section "What you had", and in tables
in every column but those under "here" or "bide".
"""

from __future__ import annotations

import ast
import importlib
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import click

from tests.docs import lists
from tests.docs.pages import ROOT

_GENERATED: Final = re.compile(r"<!-- generated:.*?<!-- end: generated -->", re.DOTALL)
_HIDDEN: Final = re.compile(
    rf"{_GENERATED.pattern}|^( *)(`{{3,}}).*?^ *\2 *$|<!--.*?-->",
    re.DOTALL | re.MULTILINE,
)
"""What readers do not see, blocks, and what is made of the code."""
_SPAN: Final = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_CELL: Final = re.compile(r"(?<!\\)\|")
_END: Final = re.compile(r"(?<=[.;:?!])\s+(?=[A-Z*(\[`])")
_COMMAND: Final = re.compile(r"^(?: *\$ |    )(bide .*)$", re.MULTILINE)

OURS: Final = ("here", "bide")
"""The titles of columns that say what bide has, on pages about other libraries."""


@dataclass(frozen=True)
class Passage:
    """A sentence, or a cell of a table."""

    text: str
    line: int
    heading: str = ""
    title: str = ""
    """The title of the column, of a cell."""
    first: str = ""
    """The first cell of the row, of a cell."""
    is_theirs: bool = False
    """Whether the names are those of another library."""

    @property
    def spans(self) -> list[str]:
        """The code in it."""
        return [span.replace("\\|", "|") for _, span in _SPAN.findall(self.text)]


def passages(text: str, compares: bool = False) -> Iterator[Passage]:
    """The sentences and cells of a page.

    Args:
        text: Markdown.
        compares: whether the page sets another library's names beside ours.
    """
    visible = _HIDDEN.sub(lambda found: "\n" * found[0].count("\n"), text)
    section, heading, titles = "", "", list[str]()
    gathered: list[str] = []
    begun = 0
    for number, line in enumerate([*visible.splitlines(), ""], 1):
        is_row, is_title = line.startswith("|"), line.startswith("#")
        begins = re.match(r" *([-*]|\d+\.) ", line)
        if gathered and (not line.strip() or is_row or is_title or begins):
            is_theirs = compares and section == "What you had"
            for sentence in _sentences(" ".join(gathered)):
                yield Passage(sentence, begun, heading, is_theirs=is_theirs)
            gathered = []
        if is_title:
            heading = line.lstrip("# ")
            section = heading if line.startswith("## ") else section
        elif is_row:
            cells = [cell.strip() for cell in _CELL.split(line)[1:-1]]
            if not titles:
                titles = cells
            elif set(line) - set("|-: "):
                for title, cell in zip(titles, cells, strict=False):
                    is_theirs = compares and title not in OURS
                    yield Passage(cell, number, heading, title, cells[0], is_theirs)
        elif line.strip():
            begun = begun if gathered else number
            gathered.append(line.strip())
        if not is_row:
            titles = []


def _sentences(paragraph: str) -> Iterator[str]:
    held = ""
    for part in _END.split(paragraph):
        held = f"{held} {part}" if held else part
        if held.count("`") % 2 == 0:  # the part does not end within code
            yield held
            held = ""
    if held:
        yield held


def command_lines(text: str) -> list[str]:
    """The lines of a page's blocks, fenced or indented, that call `bide`, run or not."""
    written = _GENERATED.sub("", text)
    return [re.sub(r"\s[|>#].*", "", line) for line in _COMMAND.findall(written)]


class Unknown(Exception):
    """A name that bide does not have."""


@dataclass(frozen=True)
class Several:
    """The type of a container."""

    of: Types


Types = frozenset[Any] | Several | None
"""What an expression may be: classes, functions and modules; None where that is not known."""


@dataclass(frozen=True)
class Reader:
    """Looks up the names in code."""

    receivers: Mapping[str, tuple[Any, ...]]
    """What variables hold."""
    others: frozenset[str]
    """Names of other libraries that may be used, too."""

    def check(self, span: str, heading: str = "") -> None:
        """Look up each name in a span.

        Args:
            span: code, without its backticks.
            heading: of the section in which it stands; an option under the heading of a command
                must be one of that command.

        Raises:
            Unknown: bide does not have the name.
        """
        if span in self.others or _NOT_CODE.fullmatch(span):
            return
        for variable in re.findall(r"\bBIDE_\w+", span):
            if variable not in lists.VARIABLES:
                raise Unknown(f"there is no environment variable {variable}")
        if re.match(r"bide( |$)", span):
            _check_command(span)
        elif re.match(r"--?[a-z]", span):
            _check_option(span, heading)
        elif not span.startswith("$"):
            self._check_code(span)

    def _check_code(self, span: str) -> None:
        if span.startswith("deploy/"):
            if not (ROOT / span).exists():
                raise Unknown(f"there is no {span}")
            return
        text = span.replace("…", "...").removeprefix("@")
        if attribute := re.fullmatch(r"\.(\w+)(\(.*\))?", text):
            self._check_in(attribute[1], lists.every_attribute(), f"nothing has {span}")
        elif argument := re.fullmatch(r"([a-z]\w*)=(?!\d+[a-z])(\S.*)?", text):
            self._check_in(argument[1], lists.every_parameter(), f"nothing takes {argument[1]}=")
            self._check_expression(argument[2] or "")
        elif re.fullmatch(r"\w+", text):
            if "_" in text.strip("_") or re.match(r"[A-Z][a-z]", text):
                self._check_in(text, lists.words(), f"there is no {text}")
        else:
            self._check_expression(text)

    def _check_in(self, name: str, names: frozenset[str], otherwise: str) -> None:
        if name not in names | self.others:
            raise Unknown(otherwise)

    def _check_expression(self, text: str) -> None:
        for form in (text, f"{text}\n pass", f"async def _():\n {text}\n  pass"):
            try:
                tree = ast.parse(form)
            except SyntaxError:  # it may be a part of a statement, or no Python at all
                continue
            self._walk(tree)
            return

    def _walk(self, node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self._types(child)
            else:
                self._walk(child)

    def _types(self, node: ast.expr) -> Types:
        """What an expression may be.

        Raises:
            Unknown: it uses a name that bide does not have.
        """
        if isinstance(node, ast.Await | ast.Starred):
            return self._types(node.value)
        if isinstance(node, ast.Name):
            return self._named(node.id)
        if isinstance(node, ast.Subscript):
            held = self._types(node.value)
            return held.of if isinstance(held, Several) else None
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Call):
            return self._returned(node)
        self._walk(node)
        return None

    def _named(self, name: str) -> Types:
        if name in self.receivers:
            return frozenset(self.receivers[name])
        if name in lists.modules():
            return frozenset({lists.modules()[name]})
        if name in sys.stdlib_module_names:
            return frozenset({importlib.import_module(name)})
        return frozenset(lists.public().get(name, ())) or None

    def _attribute(self, node: ast.Attribute) -> Types:
        whole, base = ast.unparse(node), ast.unparse(node.value)
        if whole in lists.modules():
            return frozenset({lists.modules()[whole]})
        held = self._types(node.value)
        if held is None and not {whole, base} & self.others:
            self._check_in(node.attr, lists.every_attribute(), f"nothing has .{node.attr}")
        if not isinstance(held, frozenset):
            return None
        kinds = [kind for kind in held if node.attr in _names_of(kind)]
        if not kinds and whole not in self.others:
            raise Unknown(f"there is no {whole}")
        found: set[Any] = set()
        for kind in kinds:
            value = getattr(kind, node.attr, None)
            if callable(value):
                found.add(value)
            elif isinstance(kind, type):
                types = _read(lists.annotation(kind, node.attr))
                if isinstance(types, Several):
                    return types
                found |= types or set()
        return frozenset(found) or None

    def _returned(self, node: ast.Call) -> Types:
        self._walk(ast.Tuple([*node.args, *(keyword.value for keyword in node.keywords)]))
        called = self._types(node.func)
        if called is None and isinstance(node.func, ast.Name):
            name = node.func.id
            self._check_in(name, lists.words(), f"nothing is called {name}()")
            called = frozenset(lists.callables(name)) or None
        if not isinstance(called, frozenset):
            return None
        taken = [lists.parameters(each) for each in called]
        for keyword in node.keywords:
            if keyword.arg and not any(names is None or keyword.arg in names for names in taken):
                raise Unknown(f"{ast.unparse(node.func)} takes no {keyword.arg}=")
        found: set[Any] = {each for each in called if isinstance(each, type)}
        for each in called - found:
            types = _read(str(getattr(each, "__annotations__", {}).get("return", "")))
            if isinstance(types, Several):
                return types
            found |= types or set()
        return frozenset(found) or None


_NOT_CODE: Final = re.compile(
    r"\S+\.(csv|json|lua|md|mjs|py|toml)|\[tool\.bide(\.worker)?\]|[\w.]+:[\w*]+"
)
"""Files, tables of settings, and tasks by their names."""


def _names_of(kind: Any) -> frozenset[str]:
    return lists.attributes(kind) if isinstance(kind, type) else frozenset(lists.exported(kind))


def _read(note: str) -> Types:
    """What an annotation, as text, stands for."""
    found: set[Any] = set()
    for part in note.split(" | "):
        name, _, inner = part.partition("[")
        if name in ("list", "tuple", "Sequence", "Iterator", "Iterable", "AsyncIterator"):
            return Several(_read(inner.rstrip("]").partition(", ")[0]))
        found |= {*lists.classes().get(name.strip("'\""), ())}
    return frozenset(found) or None


# -- the command line


def _check_command(span: str) -> None:
    """Look up the command and the options of a command line."""
    words = [word for word in shlex.split(span.partition(" -- ")[0]) if word != "…"]
    path: tuple[str, ...] = ()
    for word in words[1:]:
        if (*path, word) in lists.commands():
            path = (*path, word)
        elif re.match(r"--?[a-z]", word):
            if word.partition("=")[0] not in lists.options(path):
                raise Unknown(f"bide {' '.join(path)} has no option {word}")
        elif not path and not word.isupper():
            raise Unknown(f"there is no command bide {word}")
    command = lists.commands()[path]
    is_whole = not isinstance(command, click.Group) or command.invoke_without_command
    if path and not is_whole and "…" not in span:
        raise Unknown(f"{span} does nothing: a command must follow")


def _check_option(span: str, heading: str) -> None:
    option = re.split(r"[ =]", span)[0]
    meant = [path for path in headed(heading) if path in lists.commands()]
    offered = set[str]().union(*map(lists.options, meant or lists.commands()))
    if option not in offered:
        raise Unknown(f"{heading if meant else 'no command'} has no option {option}")


def headed(heading: str) -> list[tuple[str, ...]]:
    """The commands of a heading: `bide queues pause, bide queues resume`, or `bide jobs a, b`."""
    if not heading.startswith("bide "):
        return []
    first, *others = [tuple(part.split()) for part in heading.removeprefix("bide ").split(", ")]
    return [first, *(o[1:] if o[0] == "bide" else (*first[:-1], *o) for o in others)]
