"""The same reads as JSON: `/api/NAME`."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from bide.cli.site import NotFound
from bide.logs import plain
from bide.web.access import Role
from bide.web.asked import Asked
from bide.web.reads.table import READS
from bide.web.site import Site
from bide.web.trouble import extra_headers, status_and_sentence


async def data(site: Site, request: Request, asked: Asked, role: Role) -> Response:
    """What a read says."""
    read = READS.get(name := request.path_params["name"])
    if read is None:
        raise NotFound(f"There is no /api/{name}; there are {', '.join(READS)}.")
    return _json(await read(site, asked), 200)


def failed_as_json(request: Request, error: Exception) -> Response:
    """An error as `{"error": sentence}`."""
    status, sentence = status_and_sentence(error)
    return _json({"error": sentence}, status)


def _json(value: Any, status: int) -> Response:
    text = json.dumps(plain(value))  # in ASCII: nothing in it is mistaken for something else
    return Response(text, status, extra_headers(status), "application/json")
