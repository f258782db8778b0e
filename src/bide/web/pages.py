"""Renders the data of `bide.views` as HTML.

The template engine escapes all text of a page. Control characters, and characters that change the
direction of text, are replaced by visible escapes before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import datetime
from functools import cache
from hashlib import sha256
from importlib import resources
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import Response

from bide.client.coalesce import PerLoop, ReadThroughCache
from bide.errors import UsageError
from bide.logs import printable
from bide.model.durations import describe
from bide.model.ids import short_id
from bide.model.job import LISTABLE
from bide.model.latency import LONGEST
from bide.model.schedule import zone_of
from bide.queue.select import ORDER
from bide.version import VERSION
from bide.views import READS
from bide.views._async import AsyncSite
from bide.views.job import cut
from bide.views.params import NotFound, Params, about, megabytes, relative
from bide.views.queues import limits_of
from bide.views.timeline import TIMELINE_SPANS, draw, draw_heatmap
from bide.web.access import Role, extra_headers, status_and_sentence
from bide.web.selection import filled, group_shown, settings_shown, stand_of

HOME: Final = "timeline"
_PICTURES: Final[dict[str, Callable[[dict[str, Any]], Any]]] = {
    HOME: draw,
    "lateness": draw_heatmap,
}
_LONGEST: Final = 100_000
"""Maximum characters of a value on a page; the API returns all of them."""

REFRESH: Final = "x-bide-refresh"
"""The header of requests of a page that refreshes itself."""

_LEAST: Final = 0.9
"""Minimum seconds between two such reads."""


class _Shown(NamedTuple):
    m: dict[str, Any]
    seen: float
    """When it was read (`time.time()`): it contains all changes that were reported before."""
    until: float
    """When it may be read again (`time.monotonic()`)."""


_REST: Final = 10
"""The pause between reads of a page, as a multiple of the read's duration. So a page takes at most
a tenth of a processor, for any number of browsers and changes."""
_LONGEST_REST: Final = 60.0
"""Seconds."""


def _rest_after(took: float) -> float:
    """Return the seconds for which pages that refresh themselves share a read."""
    return min(_REST * took, _LONGEST_REST)


def recent() -> PerLoop[ReadThroughCache[_Shown]]:
    """Create the cache for pages that refresh themselves."""
    return PerLoop(lambda: ReadThroughCache(0.0, _rest_after))


async def page(site: AsyncSite, request: Request, params: Params, role: Role) -> Response:
    """Return the result of a read as a page."""
    name = request.path_params.get("name", HOME)
    read = READS.get(name)
    if read is None:
        raise NotFound(f"There is no page {name[:60]!r}.")

    async def look() -> _Shown:
        seen, began = time.time(), time.monotonic()
        shown = await read(site, params)
        now = time.monotonic()
        return _Shown(shown, seen, now + _rest_after(now - began))

    if REFRESH not in request.headers:
        shown = await look()
    else:  # browsers with the same page share a read
        shown = await request.app.state.recent.current.read((name, *params.pairs), look)
    least = max(_LEAST, shown.until - time.monotonic())
    picture = drawn(shown.m) if (drawn := _PICTURES.get(name)) else None
    values: dict[str, Any] = {"m": shown.m, "seen": shown.seen, "least": least}
    return render(request, name, role=role, params=params, site=site, picture=picture, **values)


def failed_as_page(request: Request, error: Exception) -> Response:
    """Return an error as a page."""
    status, sentence = status_and_sentence(error)
    return render(
        request, "error", status, sentence=sentence, role=None, params=Params(""), site=None
    )


def render(request: Request, name: str, status: int = 200, **values: Any) -> Response:
    """Render a template."""
    root = request.scope.get("root_path", "").rstrip("/")

    def link(page: str, **parameters: Any) -> str:
        given = {key: value for key, value in parameters.items() if value not in (None, "")}
        query = f"?{urlencode(given, doseq=True, errors='surrogateescape')}" if given else ""
        return f"{root}/{'' if page == HOME else page}{query}"

    text = (
        _templates()
        .get_template(f"{name}.html")
        .render(
            page=name,
            link=link,
            static=lambda file: f"{root}/static/{version()}/{file}",
            can_change=values.get("role") == Role.OPERATOR,
            root=root,
            has_stream=request.app.state.has_stream,
            here=values["params"].address(link(name)),
            **{"least": _LEAST, "seen": 0.0, **values},
        )
    )
    body = text.encode("utf-8", "backslashreplace")
    return Response(body, status, extra_headers(status), "text/html")


@cache
def _templates() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.PackageLoader("bide.web"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_printable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: dict[str, Any] = env.filters
    filters |= {
        "n": lambda number: f"{number:,}",
        "dur": _duration,
        "late": _lateness,
        "block": _block,
        "pretty": _pretty,
        "t": _time,
        "rel": _relative,
        "bytes": megabytes,
        "wall": _wall,
        "id": short_id,
        "about": about,
    }
    known: dict[str, Any] = env.globals
    known |= {"filled": filled, "story": _story}
    known |= {"settings_shown": settings_shown, "group_shown": group_shown}
    known |= {"stand_of": stand_of, "limits_of": limits_of}
    known |= {
        "STATES": LISTABLE,
        "ORDER": ORDER,
        "SPANS": tuple(TIMELINE_SPANS),
        "VERSION": VERSION,
    }
    return env


def _printable(value: Any) -> Any:
    if isinstance(value, Markup):
        return value
    return printable(value) if isinstance(value, str) else value


def _block(text: str) -> Markup:
    lines = cut(text, _LONGEST, f"\n… ({len(text):,} characters)").split("\n")
    return Markup("\n").join(escape(printable(line)) for line in lines)


def _pretty(value: Any) -> Markup:
    line = json.dumps(value, ensure_ascii=False)
    return _block(line if len(line) <= 60 else json.dumps(value, ensure_ascii=False, indent=2))


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    digits = 0 if seconds >= 10 else 3 if seconds >= 0.01 else 6
    return describe(round(seconds, digits))


def _lateness(seconds: float | None) -> str:
    open_end = seconds is not None and seconds >= LONGEST
    return f"{_duration(seconds)} or more" if open_end else _duration(seconds)


def _time(at: str | None) -> Markup | str:
    """Format a moment in UTC, which a script converts to the reader's time zone."""
    if at is None:
        return "–"
    read = datetime.fromisoformat(at)
    return Markup('<time datetime="{}" data-t>{:%Y-%m-%d %H:%M:%S} UTC</time>').format(at, read)


@jinja2.pass_context
def _relative(page: jinja2.runtime.Context, at: str | None, now: str | None = None) -> Markup | str:
    """Format the time until or since a moment, which a script updates."""
    if at is None:
        return "–"
    read = datetime.fromisoformat(at)
    from_ = datetime.fromisoformat(now) if now else page["site"].now
    away = (read - from_).total_seconds()
    return Markup('<time datetime="{}" data-rel title="{:%Y-%m-%d %H:%M:%S} UTC">{}</time>').format(
        at, read, relative(away)
    )


def _story(job: dict[str, Any]) -> list[tuple[str, Any]]:
    """Return the history of a job in order."""
    told = [(each["at"], "moved", each) for each in job["rescheduled"]]
    told += [(each["started"], "attempt", each) for each in job["attempts"]]
    return [(what, each) for _, what, each in sorted(told, key=lambda one: one[0])]


def _wall(at: str, zone: str) -> str:
    try:
        return f"{datetime.fromisoformat(at).astimezone(zone_of(zone)):%Y-%m-%d %H:%M:%S %Z}"
    except UsageError:  # this machine does not know the time zone
        return "–"


@cache
def version() -> str:
    """Return the version in the addresses of static files and of the files that they load.

    So a new release never uses cached styles or scripts of an old release.
    """
    there = resources.files("bide.web").joinpath("static").iterdir()
    data = [each.read_bytes() for each in sorted(there, key=lambda each: each.name)]
    return sha256(b"\0".join(data)).hexdigest()[:12]
