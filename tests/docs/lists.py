"""The names that bide has, read from the code: what pages may say that it has, and may not deny."""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any, Final, get_args

import click

import bide
from bide.cli.main import group
from bide.client import acl, config
from bide.model import dedup, job
from bide.protocol import keys, scripts
from bide.queue import job_view
from tests.docs.pages import ROOT

MODULES: Final = (
    *("bide", "bide.contrib.django", "bide.contrib.otel", "bide.contrib.rq"),
    *("bide.contrib.sqlalchemy", "bide.contrib.django.outbox", "bide.embedded"),
    *("bide.errors", "bide.logs", "bide.queue", "bide.testing", "bide.web"),
)
"""The modules whose public names a page may use."""

_SOURCES: Final = ROOT / "src" / "bide"


@cache
def modules() -> dict[str, ModuleType]:
    """The public modules; without those whose library is not installed."""
    found = {}
    for name in MODULES:
        with contextlib.suppress(ImportError):
            found[name] = importlib.import_module(name)
    return found


def exported(module: Any) -> list[str]:
    """The public names of a module."""
    names = getattr(module, "__all__", None)
    return [*(names or (name for name in dir(module) if not name.startswith("_")))]


@cache
def public() -> dict[str, list[Any]]:
    """Every name that a public module exports or defines, and what has that name."""
    found: dict[str, list[Any]] = {}
    for name, module in modules().items():
        for each in exported(module):
            value = getattr(module, each)
            if hasattr(module, "__all__") or getattr(value, "__module__", "") == name:
                found.setdefault(each, []).append(value)
    return found


@cache
def classes() -> dict[str, list[type]]:
    """The public classes; without those of `bide.contrib.rq`, which have all names of RQ's."""
    found: dict[str, list[type]] = {}
    for name, values in public().items():
        for value in values:
            if inspect.isclass(value) and not value.__module__.startswith("bide.contrib.rq"):
                found.setdefault(name, []).append(value)
    return found


# -- attributes and parameters


@cache
def attributes(kind: type) -> frozenset[str]:
    """The public attributes of a class and of its instances; without those of Python's types."""
    found: set[str] = set()
    for base in kind.__mro__:
        if base.__module__ != "builtins":
            found |= {*vars(base), *getattr(base, "__annotations__", ()), *_assigned(base)}
    return frozenset(name for name in found if not name.startswith("_"))


@cache
def _assigned(kind: type) -> dict[str, str]:
    """What methods of a class assign to `self`, and the annotation where there is one."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(kind)))
    except (OSError, TypeError):
        return {}
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets if isinstance(node, ast.Assign | ast.AnnAssign) else ():
            if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                note = node.annotation if isinstance(node, ast.AnnAssign) else None
                found.setdefault(target.attr, ast.unparse(note) if note else "")
    return found


def annotation(kind: type, name: str) -> str:
    """What an attribute is annotated with, as text; empty where it is not."""
    for base in kind.__mro__:
        value = vars(base).get(name)
        if isinstance(value, property):
            return str(getattr(value.fget, "__annotations__", {}).get("return", ""))
        noted = getattr(base, "__annotations__", {}).get(name) or _assigned(base).get(name)
        if noted:
            return noted if isinstance(noted, str) else getattr(noted, "__name__", "")
    return ""


@cache
def parameters(function: Any) -> frozenset[str] | None:
    """The names by which a callable takes arguments; None where it takes any."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return None
    found: set[str] = set()
    for parameter in signature.parameters.values():
        if parameter.kind is not parameter.VAR_KEYWORD:
            found.add(parameter.name)
        elif unpacked := re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation)):
            for options in classes()[unpacked[1]]:
                found |= {*inspect.get_annotations(options)}
                for base in getattr(options, "__orig_bases__", ()):
                    found |= {*getattr(base, "__annotations__", ())}
        else:
            return None
    return frozenset(found - {"self", "cls"})


@cache
def callables(name: str) -> list[Any]:
    """The public functions, classes and methods of that name."""
    found: list[Any] = [v for v in public().get(name, ()) if inspect.isroutine(v)]
    found += classes().get(name, ())
    for kinds in classes().values():
        found += [getattr(kind, name) for kind in kinds if callable(getattr(kind, name, None))]
    return found


@cache
def every_attribute() -> frozenset[str]:
    """Attributes of whichever public class."""
    return frozenset().union(*(attributes(k) for kinds in classes().values() for k in kinds))


@cache
def every_parameter() -> frozenset[str]:
    """Parameters of whichever public function, class or method."""
    found: set[str] = set()
    for name in {*public(), *every_attribute()}:
        for each in callables(name):
            found |= parameters(each) or set()
            with contextlib.suppress(TypeError, ValueError):
                found |= {*inspect.signature(each).parameters}
    return frozenset(found)


# -- the command line


@cache
def commands() -> dict[tuple[str, ...], click.Command]:
    """Every command and group of commands, by its words behind `bide`."""

    def below(command: click.Command, path: tuple[str, ...]) -> Iterator[tuple[Any, click.Command]]:
        yield path, command
        if isinstance(command, click.Group):
            for name, each in command.commands.items():
                yield from below(each, (*path, name))

    return dict(below(group, ()))


def options(path: tuple[str, ...]) -> set[str]:
    """The options that may stand behind a command's words."""
    found = {"--help", "-h"}
    for command in (commands()[()], commands()[path]):
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                found |= {*parameter.opts, *parameter.secondary_opts}
    return found


# -- words


STATES: Final = frozenset(str(state) for state in job.State)
EVENTS: Final = frozenset(job.EVENTS)
REASONS: Final = frozenset(get_args(job_view.Kind))
ROLES: Final = frozenset(acl.ROLES)
VARIABLES: Final = frozenset(config.VARIABLES)
JOB_OPTIONS: Final = frozenset(bide.Options.__annotations__) | {*bide.TaskOptions.__annotations__}


def settings() -> set[str]:
    """The keys of `[tool.bide]` and `[tool.bide.worker]`."""
    held = (*config.Settings.__struct_fields__, *config.WorkerSettings.__struct_fields__)
    return {name.replace("_", "-") for name in held} - {"file"}


@cache
def words() -> frozenset[str]:
    """Every word of these lists, and those that are stored, printed, sent or configured."""
    found = {*public(), *every_attribute(), *every_parameter(), *dir(builtins), *scripts.names()}
    found |= {word for path in commands() for word in path}
    found |= STATES | EVENTS | REASONS | ROLES | VARIABLES | {*job.TRANSITIONS}
    found |= {*get_args(dedup.EnqueueResult), *bide.Body.__struct_fields__}
    found |= {*keys.LAYOUT, *keys.META, *keys.GLOBAL, *settings()}
    found |= {f"bide_jobs_{ended}_total" for ended in keys.META}
    found |= {*re.findall(r"alert: (\w+)", (ROOT / "deploy/prometheus/rules.yml").read_text())}
    for source in _SOURCES.rglob("*.py"):
        text = source.read_text("utf-8")
        found |= {*re.findall(r"\bbide_\w+", text)}  # metrics, fixtures
        if source.parent.name in ("cli", "jobs", "web", "views"):  # fields of JSON
            found |= {*re.findall(r'"(\w+)":', text)}
    return frozenset(found)
