"""The page, served to tests: a real server on a free port of the loopback interface."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlencode

from bide.web import application
from tests.support.eventually import PATIENCE

OWN = {"sec-fetch-site": "same-origin"}


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Page:
    """What a browser would ask, asked by hand."""

    def __init__(self, port: int, root: str = "") -> None:
        self.port, self.root = port, root
        self.address = f"http://127.0.0.1:{port}{root}"

    def get(self, path: str = "/", headers: dict[str, str] | None = None, /, **asked: Any) -> Reply:
        query = f"?{urlencode(asked, errors='surrogateescape')}" if asked else ""
        return self._send("GET", f"{self.root}{path}{query}", headers or {}, None)

    def head(self, path: str = "/", headers: dict[str, str] | None = None, /) -> Reply:
        return self._send("HEAD", f"{self.root}{path}", headers or {}, None)

    def post(self, headers: dict[str, str] | None = None, /, **form: Any) -> Reply:
        given = {"content-type": "application/x-www-form-urlencoded", **(headers or OWN)}
        body = urlencode(form, errors="surrogateescape")
        return self._send("POST", f"{self.root}/do", given, body)

    def _send(self, method: str, path: str, headers: dict[str, str], body: str | None) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            names = {name.lower(): value for name, value in reply.getheaders()}
            return Reply(reply.status, names, reply.read().decode())
        finally:
            connection.close()


@contextmanager
def serve(app: Any, root: str = "", host: str = "127.0.0.1") -> Iterator[Page]:
    """Serve an application for as long as the context lasts."""
    listener = socket.create_server((host, 0))
    server = application.server(
        app, log_config=None, timeout_graceful_shutdown=1, lifespan="auto", loop="asyncio"
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield Page(listener.getsockname()[1], root)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        listener.close()
        assert not thread.is_alive()
