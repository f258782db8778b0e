"""Settings from outside the code: `$BIDE_*`, and `[tool.bide]` of the nearest pyproject.toml.

bide takes each setting from the first of these that has it: an override (tests), the argument, the
environment, the file, the default. The file is in the working directory or the nearest directory
above it. It is read once per directory and process.

    [tool.bide]
    url = "redis://127.0.0.1:6379/0"
    prefix = "shop"
    log-format = "json"

    [tool.bide.worker]
    modules = ["shop.tasks"]
    queues = ["mail", "low"]
    strategy = "fair"
    concurrency = 50
    lease = "10s"
    grace = "30s"
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, get_origin, get_type_hints

import msgspec

from bide.errors import UsageError
from bide.model.durations import is_whole, to_bytes, to_us
from bide.model.payload.signing import VARIABLE, Keyring

LOG_FORMATS: Final = ("text", "kv", "json")

VARIABLES: Final[dict[str, str]] = {
    "BIDE_URL": "the server",
    "BIDE_PREFIX": "of all keys",
    "BIDE_SIGNING_KEYS": "keys that sign jobs, and are asked of them: `ID:SECRET,ID:SECRET`",
    "BIDE_LOG_FORMAT": "how a worker logs: text, kv or json",
    "BIDE_WEB_VIEWER_TOKEN": "lets those who have it look at the page",
    "BIDE_WEB_OPERATOR_TOKEN": "lets those who have it change things on the page too",
    "BIDE_SERVER": "the program that `bide demo` and tests start as their server",
}
"""The environment variables that bide reads, with their meanings."""


Reader = Callable[[Any, str], Any]
"""Takes a value and its name for errors; returns the checked value."""


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value:
        raise UsageError(f"{what} must be text that is not empty.")
    return value


def _log_format(value: Any, what: str) -> str:
    if value not in LOG_FORMATS:
        raise UsageError(f"{what} must be one of {', '.join(LOG_FORMATS)}, not {value!r}.")
    return str(value)


def _names(value: Any, what: str) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise UsageError(f'{what} must be a list of names, such as ["a", "b"].')
    return tuple(names)


def _number(value: Any, what: str) -> Any:
    if not is_whole(value, 1):
        raise UsageError(f"{what} must be a whole number, 1 or more, not {value!r}.")
    return value


def _strategy(value: Any, what: str) -> str | dict[str, int]:
    if isinstance(value, str):
        return value
    if not isinstance(value, dict) or not value:
        raise UsageError(
            f'{what} must be "strict", "fair", or a weight for each queue such as '
            "{mail = 6, low = 1}."
        )
    return {queue: _number(weight, f"{queue} of {what}") for queue, weight in value.items()}


def _duration(value: Any, what: str) -> Any:
    key, _, where = what.partition(" in ")
    try:
        to_us(value, key)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return value


def _worker(value: Any, what: str) -> WorkerSettings:
    where = what.replace("worker in [tool.bide]", "[tool.bide.worker]")
    return WorkerSettings(**_take(value, WorkerSettings, where))


_Duration = Annotated[int | float | str | None, _duration]
_Number = Annotated[int | None, _number]
_Names = Annotated[tuple[str, ...], _names]
_Text = Annotated[str | None, _text]


class WorkerSettings(msgspec.Struct, frozen=True, rename="kebab"):
    """`[tool.bide.worker]`: the defaults of `bide worker`; each field has its reader beside it."""

    modules: _Names = ()
    queues: _Names = ()
    strategy: Annotated[str | dict[str, int] | None, _strategy] = None
    """As it is typed, or the weight of each queue."""
    concurrency: _Number = None
    executor: _Text = None
    workers: _Number = None
    max_jobs: _Number = None
    max_rss: Annotated[int | None, to_bytes] = None
    """Bytes."""
    max_idle: _Duration = None
    lease: _Duration = None
    grace: _Duration = None


class Settings(msgspec.Struct, frozen=True, rename="kebab"):
    """The settings of the environment and the file; None or empty if neither has a value."""

    url: _Text = None
    prefix: _Text = None
    log_format: Annotated[str | None, _log_format] = None
    worker: Annotated[WorkerSettings, _worker] = WorkerSettings()
    file: Path | None = None
    """The pyproject.toml that was read."""

    def __repr__(self) -> str:
        """Leave out the URL, which may have a password."""
        shown = (name for name in self.__struct_fields__ if name != "url")
        return f"Settings({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"


def settings() -> Settings:
    """Return the settings of the environment, otherwise those of the file."""
    file = _file()
    log_format = os.environ.get("BIDE_LOG_FORMAT")
    if log_format:
        _log_format(log_format, "$BIDE_LOG_FORMAT")
    return Settings(
        url=os.environ.get("BIDE_URL") or file.url,
        prefix=os.environ.get("BIDE_PREFIX") or file.prefix,
        log_format=log_format or file.log_format,
        worker=file.worker,
        file=file.file,
    )


def url_or_prefix(name: str, given: str | None) -> tuple[str | None, str]:
    """Return the URL or the prefix in force, and its source for an error text.

    The file is read only if no other source has a value.
    """
    held: str | None = getattr(_overridden, name)
    if held or given:
        return held or given, ""
    variable = f"BIDE_{name.upper()}"
    if value := os.environ.get(variable):
        return value, f" (from ${variable})"
    file = _file()
    return getattr(file, name), f" (from {file.file})"


def signing_keys() -> Keyring | None:
    """Return the keys that sign and check jobs; None if none are set.

    They come only from the environment: a secret must not be in a file that is committed.
    """
    text = _overridden.signing_keys or os.environ.get(VARIABLE)
    if text is not None and not text.strip():  # probably a secret that was not filled in
        raise UsageError(f"${VARIABLE} is empty; give it keys, or unset it to go without.")
    return None if text is None else _keyring(text)


@lru_cache(maxsize=8)
def _keyring(text: str) -> Keyring:
    return Keyring(text)


# -- overrides, for tests


class Override(NamedTuple):
    """Settings that win over all other sources; None where there is no override."""

    url: str | None = None
    prefix: str | None = None
    clock: str | None = None
    fake_server: Any = None
    signing_keys: str | None = None


generation: int = 0
"""Increases when an override starts or ends: then cached settings are resolved again."""

_overrides: tuple[Override, ...] = ()
_overridden = Override()
_lock = threading.Lock()


@contextmanager
def override(
    *,
    url: str | None = None,
    prefix: str | None = None,
    clock: str | None = None,
    fake_server: Any = None,
    signing_keys: str | None = None,
) -> Iterator[None]:
    """Override settings in a context, explicit arguments included; for tests.

    An override applies to all threads of the process. The latest one wins; settings that it leaves
    out stay as they were.
    """
    ours = Override(url or None, prefix or None, clock or None, fake_server, signing_keys or None)
    _change(lambda held: (*held, ours))
    try:
        yield
    finally:
        _change(lambda held: tuple(other for other in held if other is not ours))


def overridden() -> Override:
    """Return the merged overrides."""
    return _overridden


def _change(change: Callable[[tuple[Override, ...]], tuple[Override, ...]]) -> None:
    global _overrides, _overridden, generation
    with _lock:
        _overrides = change(_overrides)
        merged = Override()
        for other in _overrides:
            merged = Override(*(new or old for new, old in zip(other, merged, strict=True)))
        _overridden = merged
        generation += 1


# -- the file


def _file() -> Settings:
    try:
        return _read_nearest(os.getcwd())
    except FileNotFoundError:  # the working directory has been removed
        return Settings()


@lru_cache(maxsize=64)
def _read_nearest(directory: str) -> Settings:
    for place in (Path(directory), *Path(directory).parents):
        file = place / "pyproject.toml"
        if os.path.isfile(file):
            return Settings() if _planted(file) else _read(file)
    return Settings()


def _planted(file: Path) -> bool:
    """Whether another user may have placed the file, for example in /tmp."""
    if os.name != "posix":
        return False
    anyone_may_write = file.parent.stat().st_mode & stat.S_IWOTH
    return bool(anyone_may_write) and file.stat().st_uid not in (0, os.geteuid())


def _read(file: Path) -> Settings:
    import tomllib  # only where there is a file

    try:
        content = tomllib.loads(file.read_text("utf-8"))
    except OSError as error:
        raise UsageError(
            f"{file} cannot be read ({error.strerror}); change its permissions, or set $BIDE_URL "
            "and $BIDE_PREFIX."
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{file} is not TOML: {error}.") from None
    tool = content.get("tool")
    table = tool.get("bide") if isinstance(tool, dict) else None
    if table is None:
        return Settings(file=file)
    values = _take(table, Settings, f"[tool.bide] of {file}")
    return Settings(**values, file=file)


def readers_of(kind: type[msgspec.Struct]) -> dict[str, tuple[str, Reader]]:
    """The keys that a table may set, each with its field and its reader."""
    hints = get_type_hints(kind, include_extras=True)
    return {
        field.encode_name: (field.name, hints[field.name].__metadata__[0])
        for field in msgspec.structs.fields(kind)
        if get_origin(hints[field.name]) is Annotated
    }


def _take(table: Any, kind: type[msgspec.Struct], where: str) -> dict[str, Any]:
    if not isinstance(table, dict):
        raise UsageError(f"{where} is not a table; write its keys under it, one a line.")
    readers = readers_of(kind)
    for key in table:
        if key not in readers:
            raise UsageError(f"{where} sets {key!r}, which is none of {', '.join(readers)}.")
    return {
        readers[key][0]: readers[key][1](value, f"{key} in {where}") for key, value in table.items()
    }
