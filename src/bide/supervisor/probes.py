"""`/livez`, `/readyz` and `/metrics` over HTTP, for whatever runs and watches the service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from bide.errors import BideError
from bide.exposition import CONTENT_TYPE

Probe = Callable[[], str]
"""Says what is wrong, or nothing."""

Metrics = Callable[[], Awaitable[str]]
"""Figures, in Prometheus' text format."""

_PATIENCE: Final = 5.0
_FIGURES: Final = 4.0
"""Seconds for figures: less, so that whoever asks is told why there are none."""
_LONGEST: Final = 8192
_MOST_WAITING: Final = 100
"""Connections that have sent no whole request yet, at most; a new one closes the oldest."""
_REASONS: Final = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}


async def serve(
    host: str, port: int, probes: dict[str, Probe], metrics: Metrics | None = None
) -> asyncio.Server:
    """Answer `GET PATH` with 200, or with 503 and what is wrong; and `/metrics`.

    Args:
        host: the interface.
        port: 0 for any that is free.
        probes: by path.
        metrics: what `/metrics` answers; a `BideError` that it raises is what is wrong.

    Raises:
        OSError: the port is taken.
    """
    waiting: dict[asyncio.StreamWriter, None] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        waiting[writer] = None
        if len(waiting) > _MOST_WAITING:
            oldest = next(iter(waiting))
            del waiting[oldest]
            oldest.close()  # its reader sees the end
        try:
            async with asyncio.timeout(_PATIENCE):
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                    head = b""
                waiting.pop(writer, None)
                writer.write(await _respond(head, probes, metrics))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.CancelledError):  # the last: everything ends
            pass
        finally:
            waiting.pop(writer, None)
            writer.close()

    return await asyncio.start_server(answer, host, port, limit=_LONGEST)


async def _respond(head: bytes, probes: dict[str, Probe], metrics: Metrics | None) -> bytes:
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
    code, text, kind = 200, "ok\n", "text/plain; charset=utf-8"
    paths = [*probes, *(["/metrics"] if metrics else [])]
    if not rest:
        code, text = 400, "not HTTP\n"
    elif method not in (b"GET", b"HEAD"):
        code, text = 405, "GET or HEAD\n"
    elif metrics is not None and path == "/metrics":
        try:
            async with asyncio.timeout(_FIGURES):
                text, kind = await metrics(), CONTENT_TYPE
        except TimeoutError:
            code, text = 503, f"no figures came within {_FIGURES:g} seconds\n"
        except BideError as error:
            code, text = 503, f"{error}\n"
    elif path not in probes:
        code, text = 404, f"there is {', '.join(paths)}\n"
    elif wrong := probes[path]():
        code, text = 503, f"{wrong}\n"
    body = text.encode()
    lines = [
        f"HTTP/1.1 {code} {_REASONS.get(code, 'Service Unavailable')}",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + (b"" if method == b"HEAD" else body)
