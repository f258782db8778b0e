"""Writes the generated regions of `docs/reference`: public names, their signatures and docstrings.

A region names what it shows: `<!-- generated: bide.Queue bide.AsyncQueue -->`. The sources are read
by griffe, and not imported, so no optional library is needed. Names in code spans become links.

`make docs` runs it; `make check` runs it with `--check`.
"""

from __future__ import annotations

import ast
import logging
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import griffe
import regions

REFERENCE: Final = regions.DOCS / "reference"
SOURCES: Final = regions.DOCS.parent / "src"

CONSTRUCTED: Final = frozenset(
    (
        *("bide.Queue", "bide.AsyncQueue", "bide.DelayQueue", "bide.AsyncDelayQueue"),
        *("bide.Retry", "bide.Retention", "bide.Unique", "bide.Worker", "bide.Body"),
        *("bide.RetryLater", "bide.PauseQueue", "bide.Snooze", "bide.Fail", "bide.Prepared"),
        *("bide.contrib.django.DatabaseConnections", "bide.contrib.otel.Tracing"),
        *("bide.contrib.otel.Metrics", "bide.contrib.sqlalchemy.Outbox"),
        "bide.contrib.django.outbox.Outbox",
        *("bide.contrib.rq.DelayQueue", "bide.contrib.rq.Timer", "bide.logs.JobFilter"),
    )
)
"""The classes that a program calls; bide makes the objects of the others."""

RETURNED: Final = ("bide.protocol.", "bide.worker.")
"""The modules of values that calls return. Programs read their fields, and do not import them."""

HIDDEN: Final[dict[str, str]] = {
    "bide.AsyncItem": "token pid lease_us",
    "bide.Batch": "way",
    "bide.Debounce": "way",
    "bide.Item": "token pid lease_us",
    "bide.ItemInfo": "read",
    "bide.Limits": "read",
    "bide.PauseQueue": "delay_us",
    "bide.QueueStats": "now_us next_due_us",
    "bide.Resource": "is_async function name",
    "bide.Retention": "stored result_bytes read",
    "bide.Retry": "wire from_wire",
    "bide.RetryLater": "delay_us",
    "bide.Schedule": "timing jitter_us last_us times seen_us version closed stand firing "
    "foreseen passed read",
    "bide.Snooze": "when",
    "bide.Throttle": "way",
    "bide.Unique": "way",
    "bide.Worker": "measured metrics has_health_port others on_open is_opening replaceable polled",
    "bide.contrib.django.Backend": "supports_defer supports_async_task supports_get_result "
    "supports_priority validate_task enqueue get_result check",
    "bide.logs.JobFilter": "filter",
    "bide.protocol.commands.queues.RunningTask": "since_us",
    "bide.protocol.commands.queues.WorkerReport": "started_us",
    "bide.queue.AsyncEventListener": "abandon",
    "bide.testing.Eager": "blocking awaited enqueue enqueue_async",
    "bide.testing.JobSeen": "due_us",
}
"""Members of a class that only bide itself uses."""

SPECIAL: Final = ("__call__", "__next__", "__anext__")
WIDE: Final = 88

Kind = griffe.Object


@cache
def package() -> Kind:
    """The package, read from its sources."""
    logging.getLogger("griffe").setLevel(logging.ERROR)
    found = griffe.load("bide", search_paths=[SOURCES], allow_inspection=False)
    assert isinstance(found, griffe.Module)
    return found


@cache
def find(name: str) -> Kind:
    """What a public name stands for."""
    last = name.rpartition(".")[2]
    found = package()[name.removeprefix("bide.")]
    target: Kind = found.final_target if isinstance(found, griffe.Alias) else found
    if target.is_module:  # of a module and its function with one name, the function is meant
        target = target[last]
    return target


# -- where a name is shown


@dataclass(frozen=True)
class Place:
    """The page and the heading of a name."""

    page: str
    heading: str

    def link(self, text: str, page: str) -> str:
        """Link to it from a page."""
        anchor = re.sub(r"[^\w\- ]", "", self.heading.lower()).replace(" ", "-")
        return f"[`{text}`]({'' if self.page == page else self.page}#{anchor})"


@cache
def names() -> dict[str, str]:
    """Each public name that a page shows, with that page."""
    found: dict[str, str] = {}
    for page in sorted(REFERENCE.glob("*.md")):
        for words in regions.regions(page.read_text("utf-8")):
            found |= {name: page.name for name in words.split() if name.startswith("bide.")}
    return found


@cache
def shown() -> dict[str, Place]:
    """Each public name that a page shows, and its methods, with their places."""
    found = {}
    for name, page in names().items():
        found[name] = Place(page, heading(name))
        for member in methods(name):
            found[f"{name}.{member}"] = Place(page, heading(name, member))
    return found


def heading(name: str, member: str = "") -> str:
    """The heading of a name, or of a method of it."""
    last = name.rpartition(".")[2]
    if name.startswith(("bide.contrib.rq.", "bide.logs.")):  # there are other names like these
        last = name.removeprefix("bide.contrib.").removeprefix("bide.")
    if member:
        return f"`{last}.{member}()` method"  # the word keeps Task.options from TaskOptions
    return f"`{last}()` function" if find(name).is_function else f"`{last}`"


# -- members


@cache
def members(name: str) -> dict[str, Kind]:
    """The public members of a class, with those that it inherits from classes of bide."""
    kind = find(name)
    if not isinstance(kind, griffe.Class):
        return {}
    is_error = ancestor(kind, "BideError")
    every = kind.members if is_error else kind.all_members
    own = kind.members
    hidden = HIDDEN.get(name, "").split()
    found: dict[str, Kind] = {}
    for each, member in every.items():
        if each in hidden or (each.startswith("_") and each not in SPECIAL):
            continue
        target = member.final_target if isinstance(member, griffe.Alias) else member
        is_elsewhere = each not in own and getattr(target.parent, "name", "") == "Middleware"
        if target.is_attribute or (target.is_function and target.docstring and not is_elsewhere):
            found[each] = target
    return dict(sorted(found.items(), key=lambda pair: pair[0] not in own))


def methods(name: str) -> dict[str, Kind]:
    """The methods of a class that the reference shows in full."""
    twin = twin_of(name)
    return {
        each: member
        for each, member in members(name).items()
        if member.is_function and not (twin and _same(member, members(twin).get(each)))
    }


def attributes(name: str) -> dict[str, Kind]:
    """The attributes and properties of a class; of an `Async` class those that its twin lacks."""
    twin = twin_of(name)
    beside = members(twin) if twin else {}
    found = {n: m for n, m in members(name).items() if not m.is_function and n not in beside}
    return dict(sorted(found.items(), key=lambda pair: "property" in pair[1].labels))


def twin_of(name: str) -> str:
    """The blocking class of an `Async` class; empty for all others."""
    package, _, last = name.rpartition(".")
    return f"{package}.{last.removeprefix('Async')}" if last.startswith("Async") else ""


def _same(member: Kind, other: Kind | None) -> bool:
    return other is not None and _text(member) == _text(other)


def ancestor(kind: Kind, base: str) -> bool:
    """Whether a class has a base of that name."""
    return isinstance(kind, griffe.Class) and any(each.name == base for each in kind.mro())


def _text(kind: Kind) -> str:
    return kind.docstring.value if kind.docstring else ""


# -- docstrings


@dataclass
class Said:
    """A docstring in parts."""

    text: list[str] = field(default_factory=list)
    parts: dict[str, dict[str, str]] = field(default_factory=dict)
    """Of `Args`, `Raises` and `Attributes`: each name, and what is said of it."""
    returns: str = ""


def read(docstring: str) -> Said:
    """Take a docstring apart."""
    said = Said()
    part, last = "", ""
    for line in docstring.splitlines():
        if title := re.fullmatch(r"(Args|Raises|Attributes|Returns|Yields):", line):
            part, last = title[1], ""
        elif not part or (line and not line.startswith(" ")):
            part = ""
            said.text.append(line)
        elif part in ("Returns", "Yields"):
            said.returns = f"{said.returns} {line.strip()}".strip()
        elif entry := re.match(r"    (\*{0,2}\w+): (.*)", line):
            last = entry[1]
            said.parts.setdefault(part, {})[last] = entry[2]
        elif line.strip():
            said.parts[part][last] += f" {line.strip()}"
    return said


@dataclass(frozen=True)
class Scope:
    """Where a docstring stands, which decides what its names mean."""

    page: str
    name: str = ""
    """The public name of the class or function."""
    taken: frozenset[str] = frozenset()
    """The arguments of the function: these are not links."""

    def linked(self, text: str) -> str:
        """Make links of the names in a text's code spans."""
        return re.sub(r"(?<![`\[])(`{1,2})([^`\n]+)\1(?!`)", self._link, text)

    def _link(self, found: re.Match[str]) -> str:
        span = found[2]
        bare = re.sub(r"\(\.*\)$", "", span)
        if re.fullmatch(r"[A-Za-z_][\w.]*", bare) and bare not in self.taken:
            package = self.name.rpartition(".")[0]
            of_class = (self.name, twin_of(self.name)) if find(self.name).is_class else ()
            for whole in (
                *(f"{each}.{bare}" for each in of_class if each),
                *(f"{package}.{bare}", f"bide.{bare}", bare),
            ):
                if whole in shown() and whole != self.name:
                    return shown()[whole].link(span, self.page)
        return f"`{span}`"

    def cell(self, text: str) -> str:
        """Make a cell of a table: one line, that ends without a full stop if it is one sentence."""
        text = re.sub(r"\n+ *- ", "<br>• ", text)
        line = " ".join(text.split()).replace("|", "\\|")
        return self.linked(line.removesuffix(".") if ". " not in line else line)

    def paragraphs(self, lines: list[str]) -> Iterator[str]:
        """Convert the text of a docstring: indented lines are code, the rest is Markdown."""
        code: list[str] = []
        for line in [*lines, None]:
            if line is not None and (line.startswith("    ") or (code and not line)):
                code.append(line.removeprefix("    "))
                continue
            if code:
                yield from block("\n".join(code).rstrip().splitlines())
                code = []
            if line is not None:
                yield self.linked(line)


def table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A table, and an empty line; nothing without rows."""
    if rows:
        yield f"| {' | '.join(titles)} |"
        yield f"|{'---|' * len(titles)}"
        for row in rows:
            yield f"| {' | '.join(row)} |"
        yield ""


# -- signatures


def signature(call: str, function: griffe.Function | None, result: str = "") -> list[str]:
    """A signature in a block; over several lines where one is too narrow."""
    parts: list[str] = []
    stars = False
    parameters = list(function.parameters) if function else []
    for number, parameter in enumerate(parameters):
        kind = parameter.kind
        if parameter.name in ("self", "cls"):
            continue
        if kind is griffe.ParameterKind.var_positional:
            stars = True
        if kind is griffe.ParameterKind.keyword_only and not stars:
            stars = True
            parts.append("*")
        mark = {
            griffe.ParameterKind.var_positional: "*",
            griffe.ParameterKind.var_keyword: "**",
        }.get(kind or griffe.ParameterKind.positional_or_keyword, "")
        text = f"{mark}{parameter.name}"
        default = value(parameter.default, function)
        if parameter.annotation is not None:
            text += f": {typed(parameter.annotation, function)}"
        if parameter.default is not None and not mark:
            text += f" = {default}" if parameter.annotation else f"={default}"
        parts.append(text)
        following = parameters[number + 1] if number + 1 < len(parameters) else None
        positional = griffe.ParameterKind.positional_only
        if kind is positional and (following is None or following.kind is not positional):
            parts.append("/")
    return lay_out(call, parts, result)


def quoted(expression: object) -> str:
    """An expression as this project writes it: griffe has single quotes."""
    text = str(expression)
    return text if '"' in text else text.replace("'", '"')


def value(default: object, kind: Kind | None) -> str:
    """A default; of a constant of bide, its value."""
    found = constant(str(default), kind)
    return quoted(default if found is None else found.value)


def constant(name: str, kind: Kind | None) -> griffe.Attribute | None:
    """What a module of bide assigns to a name, or to the name that it imports."""
    if kind is None or not name.isidentifier():
        return None
    found: Any = kind.module.members.get(name)
    while found is not None and found.is_alias:
        try:
            found = package()[found.target_path.removeprefix("bide.")]
        except KeyError:
            return None
    return found if isinstance(found, griffe.Attribute) else None


def aliases(text: str, kind: Kind) -> dict[str, str]:
    """The types in a text that have a name only inside of bide, each with its meaning."""
    found = {}
    for name in re.findall(r"\b[A-Z]\w+", text):
        alias = constant(name, kind)
        if alias is not None and name != "Duration" and "TypeVar" not in str(alias.value):
            found[name] = typed(alias.value, alias)
    return found


class _Plain(ast.NodeTransformer):
    """Leaves out of a type what says nothing to a reader: `Final`, bounds, private names."""

    def __init__(self, kind: Kind | None) -> None:
        self._kind = kind

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        outer, inner = ast.unparse(node.value), node.slice
        if outer == "Annotated" and isinstance(inner, ast.Tuple):
            return self._plain(inner.elts[0])
        if outer == "Final":
            return self._plain(inner)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        found = constant(node.id, self._kind) if node.id.startswith("_") else None
        return self._plain(ast.parse(str(found.value), mode="eval").body) if found else node

    def _plain(self, node: ast.AST) -> ast.AST:
        plain: ast.AST = self.visit(node)
        return plain


def typed(annotation: object, kind: Kind | None) -> str:
    """A type as readers need it."""
    text = str(annotation or "")
    return quoted(ast.unparse(_Plain(kind).visit(ast.parse(text)))) if text else ""


def lay_out(call: str, parts: list[str], result: str) -> list[str]:
    """Write a call on one line, or with a line for each parameter."""
    arrow = f" -> {result}" if result else ""
    line = f"{call}({', '.join(parts)}){arrow}"
    if len(line) <= WIDE or not parts:
        return [line]
    return [f"{call}(", *(f"    {part}," for part in parts), f"){arrow}"]


def block(lines: list[str]) -> Iterator[str]:
    """A block of Python that is not run."""
    yield from ("```py", *lines, "```", "")


def with_aliases(lines: list[str], more: list[tuple[Kind, str]]) -> list[str]:
    """A signature, and below it the meaning of the names in it and in further types."""
    found: dict[str, str] = {}
    for kind, text in more:
        found |= aliases(text or "\n".join(lines), kind)
    meanings: list[str] = []
    for name, meaning in found.items():
        text = f"{name} = {meaning}"
        meanings += textwrap.wrap(text, WIDE, subsequent_indent="    ", break_long_words=False)
    return [*lines, "", *meanings] if meanings else lines


def signatures(prefix: str, function: griffe.Function) -> list[str]:
    """All signatures of a function: those of its overloads, if it has some."""
    lines: list[str] = []
    for each in function.overloads or [function]:
        lines += signature(prefix, each, typed(each.returns, function))
    return lines


# -- pages


def make(page: Path, words: str) -> str:
    """Make a region of a page."""
    if words == "names":
        return "\n".join(index(page.name))
    lines: list[str] = []
    for name in words.split():
        lines += class_of(name, page.name) if find(name).is_class else other(name, page.name)
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines))


def index(page: str) -> Iterator[str]:
    """All public names, and what each is."""
    rows = []
    for name, place in sorted(shown().items(), key=lambda pair: pair[0].lower()):
        if not (place.heading.endswith(" method") or name.startswith(RETURNED)):
            first = _text(find(name)).partition("\n\n")[0]
            rows.append((place.link(name, page), Scope(page, name).cell(first)))
    yield from table(("name", "description"), rows)


def other(name: str, page: str) -> Iterator[str]:
    """A function, or a name for a type."""
    found = find(name)
    scope = Scope(page, name)
    yield from (f"## {heading(name)}", "")
    if isinstance(found, griffe.Function):
        yield from function(name, found, scope)
    else:
        assert isinstance(found, griffe.Attribute)
        yield from block([f"{name} = {found.value}"])
        yield from (*scope.paragraphs(read(_text(found)).text), "")


def function(prefix: str, found: griffe.Function, scope: Scope) -> Iterator[str]:
    """A function or a method: signature, text, arguments, result and errors."""
    if "async" in found.labels:
        prefix = f"await {prefix}"
    yield from block(with_aliases(signatures(prefix, found), [(found, "")]))
    taken = frozenset(parameter.name for parameter in found.parameters)
    yield from described(read(_text(found)), Scope(scope.page, scope.name, taken))


def described(said: Said, scope: Scope) -> Iterator[str]:
    """The parts of a docstring."""
    yield from scope.paragraphs(said.text)
    yield ""
    arguments = said.parts.get("Args", {})
    rows = [(f"`{name.lstrip('*')}`", scope.cell(text)) for name, text in arguments.items()]
    yield from table(("argument", "meaning"), rows)
    if said.returns:
        yield from (f"**Returns:** {scope.linked(said.returns)}", "")
    errors = said.parts.get("Raises", {})
    yield from table(
        ("raises", "when"),
        [(scope.linked(f"`{name}`"), scope.cell(text)) for name, text in errors.items()],
    )


def class_of(name: str, page: str) -> Iterator[str]:
    """A class, with its attributes and methods."""
    kind = find(name)
    assert isinstance(kind, griffe.Class)
    scope = Scope(page, name)
    said = read(_text(kind))
    yield from (f"## {heading(name)}", "")
    types = [(member, type_of(member, kind)) for member in attributes(name).values()]
    if name in CONSTRUCTED or not ancestor(kind, "BideError"):
        yield from block(with_aliases(constructor(name, kind), [(kind, ""), *types]))
    yield from described(Said(said.text), scope)
    if bases := parents(kind, scope):
        yield from (f"Bases: {', '.join(bases)}.", "")
    yield from arguments(name, kind, said, scope)
    yield from attributes_table(name, kind, said, scope)
    yield from twin(name, scope)
    for each, member in methods(name).items():
        assert isinstance(member, griffe.Function)
        yield from (f"### {heading(name, each)}", "")
        yield from function(each, member, scope)


def constructor(name: str, kind: griffe.Class) -> list[str]:
    """How a program makes an object of a class; otherwise the name alone."""
    if name not in CONSTRUCTED:
        name = name.rpartition(".")[2] if name.startswith(RETURNED) else name
        return [f"class {name}({record_of(kind)})" if record_of(kind) else f"class {name}"]
    if ancestor(kind, "BideError") or "__init__" in kind.members:
        made = kind.members.get("__init__")
        return signature(f"class {name}", made if isinstance(made, griffe.Function) else None)
    fields = [
        f"{each}: {typed(member.annotation, kind)}"
        + ("" if member.value is None else f" = {value(member.value, kind)}")
        for each, member in kind.members.items()
        if isinstance(member, griffe.Attribute)
        and "property" not in member.labels
        and not each.startswith("_")
    ]
    return lay_out(f"class {name}", fields, "")


def type_of(member: Kind, kind: griffe.Class) -> str:
    """The type of an attribute; without one, that of the argument of the same name."""
    assert isinstance(member, griffe.Attribute)
    if str(member.annotation) in ("Final", "None"):
        made = kind.all_members.get("__init__")
        if isinstance(made, griffe.Function) and str(member.value) in made.parameters:
            return typed(made.parameters[str(member.value)].annotation, member)
        return ""
    return typed(member.annotation, member)


def parents(kind: griffe.Class, scope: Scope) -> list[str]:
    """The bases that matter to a program: those of errors and of middlewares."""
    if kind.name == "BideError" or ancestor(kind, "BideError") or ancestor(kind, "Middleware"):
        return [scope.linked(f"`{base}`") for base in kind.bases]
    return []


def record_of(kind: griffe.Class) -> str:
    """Which of Python's kinds of records a class is, if it is one."""
    bases = [str(base) for each in (kind, *kind.mro()) for base in each.bases]
    return next((b for b in bases if b in ("NamedTuple", "TypedDict", "StrEnum")), "")


def arguments(name: str, kind: griffe.Class, said: Said, scope: Scope) -> Iterator[str]:
    """The arguments of a constructor, as the class or its `__init__` describes them."""
    made = kind.members.get("__init__")
    if name not in CONSTRUCTED:
        return
    told = read(_text(made)) if isinstance(made, griffe.Function) else Said()
    parts = {key: said.parts.get(key, {}) | told.parts.get(key, {}) for key in ("Args", "Raises")}
    taken = frozenset(parts["Args"])
    yield from described(Said(told.text, parts), Scope(scope.page, scope.name, taken))


def attributes_table(name: str, kind: griffe.Class, said: Said, scope: Scope) -> Iterator[str]:
    """The attributes, with their types."""
    rows = []
    is_enum = record_of(kind) == "StrEnum"
    told = said.parts.get("Attributes", {})
    in_args = said.parts.get("Args", {}) if name in CONSTRUCTED else {}
    for each, member in attributes(name).items():
        assert isinstance(member, griffe.Attribute)
        if each in in_args and not _text(member):
            continue
        about = read(_text(member))
        text = "\n".join(about.text) or told.pop(each, "")
        for error, when in about.parts.get("Raises", {}).items():
            text = f"{text.rstrip()} Raises `{error}`: {when}"
        second = quoted(member.value) if is_enum else type_of(member, kind)
        shown_as = f"`{second}`".replace("|", "\\|") if second else ""
        rows.append((f"`{each}`", shown_as, scope.cell(text)))
    rows += [(f"`{each}`", "", scope.cell(text)) for each, text in told.items()]
    first = "key" if record_of(kind) == "TypedDict" else "attribute"
    titles = (first, "value" if is_enum else "type", "meaning")
    columns = 3 if any(row[2] for row in rows) else 2
    yield from table(titles[:columns], [row[:columns] for row in rows])


def twin(name: str, scope: Scope) -> Iterator[str]:
    """What an `Async` class shares with its blocking class."""
    blocking = twin_of(name)
    same = [each for each in members(name) if each not in methods(name)] if blocking else []
    functions = [each for each in same if members(name)[each].is_function]
    if not blocking:
        return
    place = shown()[blocking]
    last = blocking.rpartition(".")[2]

    def listed(which: list[str]) -> str:
        places = [shown().get(f"{blocking}.{each}") for each in which]
        return ", ".join(
            found.link(each, scope.page) if found else f"`{each}`"
            for each, found in zip(which, places, strict=True)
        )

    awaited = [each for each in functions if "async" in members(name)[each].labels]
    plain = [each for each in functions if each not in awaited]
    kept = [each for each in same if each not in functions and each in members(blocking)]
    if functions or kept:
        yield from (f"It shares these members with {place.link(last, scope.page)}:", "")
        if awaited:
            yield f"- awaited: {listed(awaited)}"
        if plain:
            yield f"- not awaited: {listed(plain)}"
        if kept:
            yield f"- attributes: {listed(kept)}"
        yield ""


if __name__ == "__main__":
    regions.main(sorted(REFERENCE.glob("*.md")), make)
