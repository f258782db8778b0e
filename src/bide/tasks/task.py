"""Tasks: the functions that a name means, and the names that a worker runs.

A name is `module:qualname`, or a word such as `send_email` that the decorator gives. A worker runs
a task only if a decorator in its process has registered the task, or if the task is in a module
that the worker serves. The name in a payload is looked up among these, and is never imported.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from types import FunctionType, MethodType, ModuleType
from typing import Any, Final, NamedTuple

from bide.errors import TaskNotFound, UsageError
from bide.model.dedup import check_dedup
from bide.model.durations import delay_to_us, to_us
from bide.model.ids import LONGEST_TASK, program_of
from bide.model.options import (
    CONSTRAINTS,
    OnCrash,
    Options,
    TaskOptions,
    check_durability,
    check_names,
    write_constraints,
)
from bide.model.payload.body import DEFAULT_TIMEOUT
from bide.model.payload.signature import Signature
from bide.model.retry import NO_RETRY, Retry, as_retry
from bide.protocol.keys import check_priority
from bide.tasks.registry import NamedTask, is_given, module_file, same, task_name

Function = Callable[..., Any]


class Policy(NamedTuple):
    """How a task's jobs run, from its decorator; a job's own options take precedence."""

    timeout: float = DEFAULT_TIMEOUT
    retry: Retry = NO_RETRY
    has_retry: bool = False
    keep: float | None = None
    on_crash: OnCrash = "rerun"
    on_success: Function | str | None = None
    on_failure: Function | str | None = None


def policy_of(options: TaskOptions) -> Policy:
    """Return the part of a task's options that its worker needs."""
    named: dict[str, Any] = {**options, "on_success": None, "on_failure": None}
    return Policy(
        **body_fields(named),
        has_retry=options.get("retry") is not None,
        on_success=options.get("on_success"),
        on_failure=options.get("on_failure"),
    )


def check_timeout(timeout: Any) -> float:
    """Convert a time-out of more than 0 to seconds."""
    is_negative = isinstance(timeout, int | float) and timeout < 0
    seconds = 0 if is_negative else to_us(timeout, "timeout") / 1e6
    if seconds <= 0:
        raise UsageError(f"timeout must be more than 0, not {timeout!r}.")
    return seconds


def check_on_crash(on_crash: Any) -> OnCrash:
    """Check the option `on_crash`: what happens to a job whose worker died."""
    if on_crash not in ("rerun", "fail"):
        raise UsageError(f"on_crash must be 'rerun' or 'fail', not {on_crash!r}.")
    return on_crash  # type: ignore[no-any-return]


LONGEST_DESCRIPTION: Final = 500
"""Characters."""


def check_description(text: Any) -> str:
    """Check the option `description`."""
    if isinstance(text, str) and len(text) <= LONGEST_DESCRIPTION and is_unicode(text):
        return text
    shown = f"{text[:30]!r}… ({len(text)} characters)" if isinstance(text, str) else repr(text)
    raise UsageError(
        f"description must be text of at most {LONGEST_DESCRIPTION} characters, not {shown}; "
        "longer notes go into meta."
    )


def is_unicode(text: str) -> bool:
    """Whether a text can be sent, as UTF-8 or as the bytes that it was read from."""
    try:
        text.encode("utf-8", "surrogateescape")  # listings show ids that are not UTF-8 in this form
    except UnicodeEncodeError:
        return False
    return True


def check_meta(meta: Any) -> dict[str, Any]:
    """Check the option `meta`."""
    if not isinstance(meta, Mapping) or not all(isinstance(key, str) for key in meta):
        raise UsageError(f"meta must be a dict with text as keys, not {meta!r}.")
    return dict(meta)


BODY: Final[dict[str, tuple[str, Callable[[Any], Any]]]] = {
    "timeout": ("timeout", check_timeout),
    "retry": ("retry", as_retry),
    "retention": ("keep", lambda time: to_us(time, "retention") / 1e6),
    "on_crash": ("on_crash", check_on_crash),
    "description": ("description", check_description),
    "meta": ("meta", check_meta),
    "on_success": ("on_success", task_name),
    "on_failure": ("on_failure", task_name),
}
"""The options that are stored in the body: the name of the field, and what checks the value."""

APART: Final = frozenset(Options.__annotations__) - CONSTRAINTS - BODY.keys()
"""The options that are sent beside the body, and are not constraints."""


def body_fields(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a body that these options fill, checked."""
    return {
        field: check(options[name])
        for name, (field, check) in BODY.items()
        if options.get(name) is not None
    }


_OF_RUNS: Final = frozenset(Policy._fields) | {"retention"}
"""The options of a decorator that a worker reads; an enqueue reads the other options."""

CATCH_ALL: Final = "*"
"""The name of the catch-all, which runs jobs whose task the worker does not have."""

_SHOWN: Final = 20
"""Maximum number of names in an error."""


class Target(NamedTuple):
    """A task of this process."""

    function: Function
    is_async: bool
    signature: Signature
    policy: Policy


class _Registered(NamedTuple):
    function: Function
    options: TaskOptions


_registered: dict[str, _Registered] = {}


def with_owner(task: Function | str, args: Sequence[Any]) -> Sequence[Any]:
    """Return the arguments of a call; for a bound method, the instance comes first."""
    if isinstance(task, MethodType) and not inspect.isclass(task.__self__):
        return (task.__self__, *args)
    return args


def register(
    function: Function, options: TaskOptions | None = None, name: str | None = None
) -> str:
    """Let workers of this process run a function, by its own name or a given one."""
    name = task_name(function) if name is None else _free_name(name, function)
    if options:  # raise at the wrong call
        check_options(options)
        if name == CATCH_ALL and (idle := sorted(options.keys() - _OF_RUNS)):
            raise UsageError(
                f"{idle[0]} is an option of an enqueue, and no call enqueues the task '*'; leave "
                "it out, or give it to the jobs."
            )
    _registered[name] = _Registered(function, options or {})
    return name


def registering_modules() -> set[str]:
    """Return the modules of all functions that this process has registered."""
    return {known.function.__module__ for known in list(_registered.values())}


def _free_name(name: str, function: Function) -> str:
    is_word = isinstance(name, str) and is_given(name) and len(name) <= LONGEST_TASK
    if not is_word and name != CATCH_ALL:
        raise UsageError(
            "name must be a word of letters, digits, '_' and '-', such as 'send_email', of "
            f"{LONGEST_TASK} characters at most, or '*' for all jobs whose task is unknown, not "
            f"{name!r}."
        )
    if not callable(function):
        raise UsageError(f"{function!r} is not a function, so it cannot be the task {name!r}.")
    known = _registered.get(name)
    if known is not None and not same(known.function, function):
        raise UsageError(
            f"{name!r} is the name of {module_file(known.function)} already; "
            f"give {module_file(function)} another."
        )
    return name


def defaults_of(name: str) -> TaskOptions:
    """Return the options of the task's decorator, if this process has the task."""
    known = _registered.get(name)
    return known.options if known else {}


def known_policy(name: str) -> Policy | None:
    """Return the policy of a task; None if this process does not have the task."""
    known = _registered.get(name)
    if known is not None:
        return policy_of(known.options)
    return None if loaded_function(name) is None else Policy()


def loaded_function(name: str) -> Function | None:
    """Return the function that a name leads to, if its module is loaded.

    Nothing is imported, so no name in a payload can run the code of a module.
    """
    module, _, path = name.partition(":")
    holder: Any = None
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        holder, found = found, vars(found).get(part) if isinstance(found, _HOLDERS) else None
    if isinstance(found, staticmethod | classmethod):
        found = found.__get__(None, holder)
    return found if isinstance(found, FunctionType | MethodType) else None


_HOLDERS: Final = (ModuleType, type)
"""The types of objects that contain functions."""


class KnownTask(NamedTuple):
    """The facts about a task that an enqueue needs."""

    name: str
    signature: Signature | None
    """The signature of its function, if this process has it."""
    defaults: TaskOptions
    """The options of its decorator, if this process has it."""
    registered: _Registered | None
    """Its registration at the time of this lookup."""


def known(task: Function | str) -> KnownTask:
    """Look up a task.

    The result is cached for names, functions and tasks. Other callables are not cached: the cache
    would keep them alive.
    """
    if type(task) not in (str, FunctionType) and not isinstance(task, NamedTask):
        return _found(task)
    found = _kept(task)
    if _registered.get(found.name) is not found.registered:
        _kept.cache_clear()
        found = _kept(task)
    return found


def _found(task: Function | str) -> KnownTask:
    name = task_name(task)
    return KnownTask(name, signature_of(task, name), defaults_of(name), _registered.get(name))


_kept = lru_cache(maxsize=4096)(_found)


def signature_of(task: Function | str, name: str) -> Signature | None:
    """Return the signature of the task's function, if this process has it."""
    if isinstance(task, str):
        known = _registered.get(name)
        return _signature(known.function, None) if known else None
    known = _registered.get(name)
    owner = _owner(task)
    function = known.function if known else getattr(task, "__func__", task) if owner else task
    try:
        return _signature(function, owner)
    except TypeError:  # it cannot be hashed
        return None


def signature_of_loaded(name: str) -> Signature | None:
    """Return the signature of the task of this name, if this process has it."""
    function = loaded_function(name)
    known = signature_of(name, name)
    return known or (signature_of(function, name) if function is not None else None)


def check_options(options: TaskOptions) -> None:
    """Refuse invalid options of a task."""
    check_names(options, TaskOptions)
    delay_to_us(options.get("delay") or 0)
    group = options.get("group") or "any"  # a placeholder: each job may name its own group
    write_constraints(options.get("expires"), group, options.get("group_concurrency"))
    check_dedup(options.get("unique"))
    check_priority(options.get("priority"))
    check_durability(options.get("durability"))
    retry: Retry | None = body_fields(options).get("retry")
    if retry is not None:
        retry.wire()


def import_task(name: str, modules: Iterable[str] = ()) -> Function:
    """Import a task by its name; for people who type names, never for names in payloads.

    A name without a module is looked for in `modules`.
    """
    module_name, colon, qualname = task_name(name).partition(":")
    if not colon:
        return _import_given(name, list(modules))
    return _lookup(import_module(module_name), module_name, qualname)[0]


def _import_given(name: str, modules: Sequence[str]) -> Function:
    for module in modules:
        for value in vars(import_module(module)).values():
            if isinstance(value, NamedTask) and value.name == name and callable(value):
                return value
    if found := _registered.get(name) or _registered.get(CATCH_ALL):
        return found.function
    there = _remark(name, _registered, ", ".join(modules) or "none")
    raise TaskNotFound(
        f"No task is named {name!r} in the modules of [tool.bide.worker]{there}; set modules "
        "there, or add --no-check."
    )


def _remark(name: str, known: Iterable[str], there: str = "") -> str:
    """Return the remark of an error: `there`, and the most similar name; nothing for neither."""
    found = _most_similar(name, tuple(known))
    parts = [there, f"did you mean {found!r}?" if found else ""]
    text = "; ".join(filter(None, parts))
    return f" ({text})" if text else ""


@lru_cache(maxsize=256)
def _most_similar(name: str, known: tuple[str, ...]) -> str:
    from difflib import get_close_matches  # here, because most programs make no mistake

    return next(iter(get_close_matches(name, known, n=1, cutoff=0.7)), "")


def import_module(name: str) -> Any:
    """Import a module by name."""
    if name.endswith(".py") or "/" in name:
        module, root = program_of(name)
        where = "" if root == os.getcwd() else f", and start in {root}"
        raise UsageError(
            f"{name!r} is a file, and a worker imports modules; write {module!r} instead{where}."
        )
    if ":" in name:
        raise UsageError(
            f"{name!r} is a function, and a worker imports modules; write "
            f"{name.partition(':')[0]!r} instead."
        )
    try:
        found = importlib.import_module(name)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
        raise TaskNotFound(
            f"The module {name!r} cannot be imported ({reason}); {_cure(name, error)}."
        ) from error
    _check_is_own(name.partition(".")[0])
    return found


def _check_is_own(root: str) -> None:
    """Refuse a module of Python that has the name of a file here, which is probably meant."""
    own = f"{root}.py"
    if root not in sys.stdlib_module_names or not os.path.isfile(own):
        return
    found = getattr(sys.modules.get(root), "__file__", None) or "built in"
    if os.path.realpath(found) != os.path.realpath(own):
        raise UsageError(
            f"{root!r} is a module of Python ({found}), which is imported instead of {own}; rename "
            "that file."
        )


def _cure(module: str, error: BaseException) -> str:
    """Return what to do about an error at the import of a module, for the end of a sentence."""
    if isinstance(error, SystemExit):
        return (
            "it was found, and its code ended the program: put that code under "
            "`if __name__ == '__main__':`"
        )
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    if missing is not None and (module == missing or module.startswith(f"{missing}.")):
        return "start from the directory that holds it, or install it"
    if missing is not None:
        return f"it was found, and imports {missing!r}: install that here, or correct the import"
    return "it was found, and its code raised this: correct the code"


class TaskRegistry:
    """The tasks that one worker runs."""

    def __init__(self, modules: Iterable[str] = (), executor: str = "auto") -> None:
        """Import the modules to serve; executors `async` and `thread` run one kind of functions."""
        self._executor = executor
        self._modules: dict[str, Any] = {}
        self._targets: dict[str, Target] = {}
        for name in modules:
            self.serve(name)

    def serve(self, module: str) -> None:
        """Import a module, and serve it too."""
        self._modules[module] = import_module(module)

    def find(self, name: str) -> Target:
        """Return the task of a name; raise `TaskNotFound` if this worker does not serve it."""
        target = self._targets.get(name)
        if target is None:
            (function, owner), options = self._find(name)
            signature = Signature.of(function, owner)
            target = Target(function, is_async(function), signature, policy_of(options))
            self._targets[name] = target
        return target

    def find_to_run(self, name: str) -> Target:
        """Return the task of a job that is about to run, if the executor runs such functions.

        If this worker does not have the task, it is the catch-all, if there is one.
        """
        is_word = ":" not in name  # so that no error is created only to be discarded
        is_caught = is_word and name not in _registered and CATCH_ALL in _registered
        try:
            target = self.find(CATCH_ALL if is_caught else name)
        except TaskNotFound:
            if is_word or CATCH_ALL not in _registered:
                raise
            target = self.find(CATCH_ALL)
        if self._executor == ("thread" if target.is_async else "async"):
            kind = "coroutine" if target.is_async else "plain"
            raise TaskNotFound(
                f"{name} is a {kind} function, which executor={self._executor!r} does not run; "
                "start a worker with executor='auto', which runs both kinds."
            )
        return target

    def find_all(self) -> None:
        """Look up all known tasks before a fork, so that no child has to."""
        for name in (*_registered, *self._functions()):
            with suppress(Exception):  # a call of that task raises the error
                self.find(name).signature.compile()

    def names(self) -> list[str]:
        """Return the tasks that it serves: registered ones, and functions of modules without any.

        A function whose name begins with an underscore is left out.
        """
        declaring = registering_modules()
        return [
            *_registered,
            *(
                name
                for name in self._functions()
                if (where := name.partition(":"))[0] not in declaring
                and not where[2].startswith("_")
            ),
        ]

    def _functions(self) -> Iterator[str]:
        """Yield the functions of its modules, by their import paths."""
        for module_name, module in self._modules.items():
            for name, value in list(vars(module).items()):  # jobs may change it meanwhile
                if inspect.isfunction(value) and value.__module__ == module_name:
                    yield f"{module_name}:{name}"

    def function(self, name: str) -> Function:
        """Return the function of a name; raises as `find`."""
        return self.find(name).function

    def _find(self, name: str) -> tuple[_Found, TaskOptions]:
        known = _registered.get(name)
        if known is not None:
            return (known.function, None), known.options
        if ":" not in name:
            given = ", ".join(sorted(known for known in _registered if ":" not in known)[:_SHOWN])
            there = _remark(name, _registered, f"there are: {given or 'none'}")
            raise TaskNotFound(
                f"No task is named {name!r} here{there}; give a function that name with "
                "@queue.task(name=...), and start the worker with its module."
            )
        module_name, _, qualname = name.partition(":")
        module = self._modules.get(module_name)
        if module is None:
            # RQ's names, such as `shop.Shop.close`, do not say where the module ends.
            holder, path, kind = module_name, qualname, ""
            while holder and holder not in self._modules:
                holder, _, kind = holder.rpartition(".")
                path = f"{kind}.{path}"
            if holder and inspect.isclass(getattr(self._modules[holder], kind, None)):
                return self._find(f"{holder}:{path}")
            served = ", ".join(sorted(self._modules)) or "none"
            names = [
                f"{there}:{qualname}"
                for there, held in self._modules.items()
                if qualname in vars(held)
            ]
            there = _remark(name, names, f"modules served: {served}")
            module_name = re.sub(r"(?<=.)\.[A-Z].*", "", module_name)  # without a class
            # Otherwise the worker would lack Django's settings.
            start = "manage.py bide" if "".join(sys.argv[:1]).endswith("manage.py") else "bide"
            raise TaskNotFound(
                f"The task {name!r} is not served here{there}; start the worker as `{start} worker "
                f"{module_name}`, or register the task in a module it imports."
            )
        found = _lookup(module, module_name, qualname)
        for code in _code_of(found[0]):
            if not self._serves(code.__module__):
                raise TaskNotFound(
                    f"The task {name!r} is inherited from the module {code.__module__!r}, which is "
                    "not served here; start the worker with that module too, or write a function "
                    "that calls it."
                )
        return found, {}

    def _serves(self, module: str) -> bool:
        """Whether inherited code from this module may run."""
        return module in self._modules


def _code_of(function: Any) -> Iterator[Any]:
    """Yield the Python functions that a call starts with, which a class may have inherited."""
    if inspect.isclass(function):
        yield from filter(inspect.isfunction, (function.__new__, function.__init__))
    else:
        code = getattr(function, "__func__", function)
        if inspect.isfunction(code):
            yield code


_Found = tuple[Function, type | None]
"""A function, and for a plain method its class, whose instance is the first argument."""


def _lookup(module: Any, module_name: str, qualname: str) -> _Found:
    """Find a function that the module itself defines: `app.tasks:os.system` raises.

    The path may lead through classes of the module, and ends at a function of the module or of such
    a class.
    """
    *path, last = qualname.split(".")
    holder: Any = module
    for part in path:
        holder = None if part.startswith("_") else getattr(holder, part, None)
        if not inspect.isclass(holder) or holder.__module__ != module_name:
            break
    else:
        found: Any = None if last.startswith("_") else getattr(holder, last, None)
        if inspect.isclass(holder):
            static = inspect.getattr_static(holder, last, None)
            if found is not None and isinstance(static, staticmethod | classmethod):
                return found, None
            if found is not None and inspect.isfunction(static):
                return static, holder
        elif callable(found) and getattr(found, "__module__", None) == module_name:
            return found, None
    meant = _remark(qualname, _public(module, module_name))
    raise TaskNotFound(
        f"The module {module_name!r} defines no public function {qualname!r}{meant}; check the "
        "spelling, and that this worker runs the code that the producer has."
    )


def _public(module: Any, module_name: str) -> list[str]:
    """Return the names of the functions that a module defines."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module_name
    ]


@lru_cache(maxsize=4096)
def _signature(function: Function, owner: type | None) -> Signature:
    return Signature.of(function, owner)


def _owner(task: Any) -> type | None:
    if isinstance(task, MethodType) and not inspect.isclass(task.__self__):
        return type(task.__self__)
    return None


def is_async(function: Function) -> bool:
    """Whether a call returns a coroutine."""
    call = getattr(function, "__call__", None)  # noqa: B004 - an instance may have an async one
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(call)
