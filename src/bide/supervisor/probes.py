"""`/livez` and `/readyz` over HTTP, for whatever runs the service."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

Probe = Callable[[], str]
"""Says what is wrong, or nothing."""

_PATIENCE: Final = 5.0
_LONGEST: Final = 8192
_REASONS: Final = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed"}


async def serve(host: str, port: int, probes: dict[str, Probe]) -> asyncio.Server:
    """Answer `GET PATH` with 200, or with 503 and what is wrong.

    Args:
        host: the interface.
        port: 0 for any that is free.
        probes: by path.

    Raises:
        OSError: the port is taken.
    """

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_PATIENCE):
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except (asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                    head = b""
                writer.write(_respond(head, probes))
                await writer.drain()
        except (OSError, TimeoutError):
            pass
        finally:
            writer.close()

    return await asyncio.start_server(answer, host, port, limit=_LONGEST)


def _respond(head: bytes, probes: dict[str, Probe]) -> bytes:
    method, _, rest = head.partition(b" ")
    path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
    code, text = 200, "ok"
    if not rest:
        code, text = 400, "not HTTP"
    elif method not in (b"GET", b"HEAD"):
        code, text = 405, "GET or HEAD"
    elif path not in probes:
        code, text = 404, f"there are {' and '.join(probes)}"
    elif wrong := probes[path]():
        code, text = 503, wrong
    body = f"{text}\n".encode()
    lines = [
        f"HTTP/1.1 {code} {_REASONS.get(code, 'Service Unavailable')}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
        "",
        "",
    ]
    return "\r\n".join(lines).encode() + (b"" if method == b"HEAD" else body)
