"""Settings from outside the code: `$BIDE_*`, and `[tool.bide]` of the nearest pyproject.toml.

bide takes each setting from the first of these that has it: an override (tests), the argument, the
environment, the file, the default. The file is in the working directory or the nearest directory
above it. It is read once per directory and process.

    [tool.bide]
    url = "redis://127.0.0.1:6379/0"
    prefix = "shop"
    log-format = "json"
    mask = "secrets"

    [tool.bide.worker]
    modules = ["shop.tasks"]
    queues = ["mail", "low"]
    strategy = "fair"
    concurrency = 50
    lease = "10s"
    grace = "30s"

    [tool.bide.workers.reports]
    queues = ["reports"]
    executor = "process"
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeVar, get_args

import msgspec

from bide.errors import UsageError
from bide.model.durations import is_whole, to_bytes, to_us
from bide.model.payload.signing import VARIABLE, Keyring

LogFormat = Literal["text", "kv", "json"]
LOG_FORMATS: Final[tuple[LogFormat, ...]] = get_args(LogFormat)

VARIABLES: Final[dict[str, str]] = {
    "BIDE_URL": "the server",
    "BIDE_PREFIX": "of all keys",
    "BIDE_SIGNING_KEYS": "keys that sign jobs and check signatures: `ID:SECRET,ID:SECRET`",
    "BIDE_LOG_FORMAT": "the log format of workers: text, kv or json",
    "BIDE_MASK": "the mask of the output: secrets, none or module:function",
    "BIDE_WEB_VIEWER_TOKEN": "the token that lets people read the dashboard",
    "BIDE_WEB_OPERATOR_TOKEN": "the token that also lets people change things there",
    "BIDE_SERVER": "the program that `bide demo` and tests start as their server",
}
"""The environment variables that bide reads, with their meanings."""


_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Number = Annotated[int, msgspec.Meta(ge=1)]
_Weights = Annotated[dict[str, _Number], msgspec.Meta(min_length=1)]
_Duration = int | float | str

_NUMBER: Final = "a whole number, 1 or more, not {!r}"
_MUST_BE: Final = {
    **dict.fromkeys(("url", "prefix", "executor", "mask"), "text that is not empty"),
    **dict.fromkeys(("concurrency", "workers", "max-jobs"), _NUMBER),
    **dict.fromkeys(("modules", "queues"), 'a list of names, such as ["a", "b"]'),
    "log-format": f"one of {', '.join(LOG_FORMATS)}, not {{!r}}",
    "strategy": '"strict", "fair", or a weight for each queue such as {{mail = 6, low = 1}}',
}
"""The end of the sentence about a value that msgspec refuses."""


class WorkerSettings(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """`[tool.bide.worker]`: the defaults of `bide worker`. Or a profile of a worker."""

    modules: tuple[_Text, ...] = ()
    queues: tuple[_Text, ...] = ()
    strategy: str | _Weights | None = None
    """The text of the option, or the weight of each queue."""
    concurrency: _Number | None = None
    executor: _Text | None = None
    workers: _Number | None = None
    max_jobs: _Number | None = None
    max_rss: int | None = None
    """Bytes."""
    max_idle: _Duration | None = None
    lease: _Duration | None = None
    grace: _Duration | None = None


class Settings(msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True):
    """The settings of the environment and the file; None or empty if neither has a value."""

    url: _Text | None = None
    prefix: _Text | None = None
    log_format: LogFormat | None = None
    mask: _Text | None = None
    """`secrets`, `none` or `module:function`."""
    worker: WorkerSettings = WorkerSettings()
    workers: dict[str, WorkerSettings] = {}
    """`[tool.bide.workers.NAME]`: the profiles; the keys that a profile lacks are those of
    `worker`."""
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
    if log_format and log_format not in LOG_FORMATS:
        must = _MUST_BE["log-format"].format(log_format)
        raise UsageError(f"$BIDE_LOG_FORMAT must be {must}.")
    return Settings(
        url=os.environ.get("BIDE_URL") or file.url,
        prefix=os.environ.get("BIDE_PREFIX") or file.prefix,
        log_format=log_format or file.log_format,
        mask=os.environ.get("BIDE_MASK") or file.mask,
        worker=file.worker,
        workers=file.workers,
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


def mask_setting() -> tuple[str | None, str]:
    """Return the mask of the environment or the file, and its source for an error text."""
    if text := os.environ.get("BIDE_MASK"):
        return text, "$BIDE_MASK"
    file = _file()
    return file.mask, f"mask in [tool.bide] of {file.file}"


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
    import tomllib  # imported only if there is a file

    try:
        content = tomllib.loads(file.read_text("utf-8-sig"))
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
        tools = content.get("tools")
        odd = "[tools.bide]" if isinstance(tools, dict) and "bide" in tools else "[bide]"
        if odd == "[tools.bide]" or "bide" in content:
            raise UsageError(f"{file} has a table {odd}, which has no effect; write [tool.bide].")
        return Settings(file=file)
    if not isinstance(table, dict):
        raise UsageError(_NO_TABLE.format(f"[tool.bide] of {file}"))
    worker = table.get("worker", {})
    workers = table.get("workers", {})
    base = _worker(worker, f"[tool.bide.worker] of {file}")
    profiles = _profiles(workers, worker, file)
    rest = {key: value for key, value in table.items() if key not in ("worker", "workers")}
    found = _convert(Settings, rest, f"[tool.bide] of {file}")
    return msgspec.structs.replace(found, worker=base, workers=profiles, file=file)


_NO_TABLE: Final = "{} is not a table; write its keys under it, one per line."


def _profiles(tables: Any, base: dict[str, Any], file: Path) -> dict[str, WorkerSettings]:
    """Read `[tool.bide.workers.NAME]`; the keys that a profile lacks are those of `base`."""
    if not isinstance(tables, dict):
        raise UsageError(
            f"workers in [tool.bide] of {file} must be tables, such as [tool.bide.workers.mail]; "
            "to start several workers, write workers = 3 into [tool.bide.worker]."
        )
    found = {}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise UsageError(
                f"[tool.bide.workers] of {file} sets {name!r}; a worker's keys are in a table with "
                "its name, such as [tool.bide.workers.mail]."
            )
        if not _PROFILE.fullmatch(name):
            raise UsageError(
                f"[tool.bide.workers] of {file} has a worker {name!r}; its name must have letters, "
                "digits, '-' and '_' only, and at most 40 of them."
            )
        found[name] = _worker({**base, **table}, f"[tool.bide.workers.{name}] of {file}")
    return found


_PROFILE: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")

S = TypeVar("S", bound=msgspec.Struct)


def _worker(table: Any, where: str) -> WorkerSettings:
    if not isinstance(table, dict):
        raise UsageError(_NO_TABLE.format(where))
    return _convert(WorkerSettings, _in_full(table, where), where)


def _convert(kind: type[S], table: dict[str, Any], where: str) -> S:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise _refusal(str(error), table, kind, where) from None


def keys_of(kind: type[msgspec.Struct]) -> list[str]:
    """Return the keys that a table may set."""
    return [field.encode_name for field in msgspec.structs.fields(kind) if field.name != "file"]


def _in_full(worker: dict[str, Any], where: str) -> dict[str, Any]:
    """Expand short forms, and check sizes and durations, for which msgspec has no types."""
    found = {**worker}
    for key in ("modules", "queues"):
        if isinstance(found.get(key), str):
            found[key] = [found[key]]
    if "max-rss" in found:
        found["max-rss"] = to_bytes(found["max-rss"], f"max-rss in {where}")
    for key in ("max-idle", "lease", "grace"):
        try:
            to_us(found.get(key, 0), key)
        except UsageError as error:
            raise UsageError(f"{where}: {error}") from None
    return found


_PLACE: Final = re.compile(r".* - at `\$(?:\.([\w-]+))?.*`", re.DOTALL)
_UNKNOWN: Final = re.compile(r"Object contains unknown field `(.*?)`(?: - .*)?", re.DOTALL)


def _refusal(
    error: str, table: dict[str, Any], kind: type[msgspec.Struct], where: str
) -> UsageError:
    """Describe in one sentence what msgspec has refused, and in which table."""
    place, unknown = _PLACE.fullmatch(error), _UNKNOWN.fullmatch(error)
    key = unknown[1] if unknown else place and place[1]
    if key is None:
        return UsageError(_NO_TABLE.format(where))
    must_be, value = _MUST_BE.get(key), table[key]
    if unknown or must_be is None:
        known = ", ".join(keys_of(kind))
        return UsageError(f"{where} sets {key!r}, which is none of {known}.")
    if key == "strategy" and isinstance(value, dict) and value:
        queue = next(queue for queue in value if not is_whole(value[queue], 1))
        key, must_be, value = f"{queue} of strategy", _NUMBER, value[queue]
    return UsageError(f"{key} in {where} must be {must_be.format(value)}.")
