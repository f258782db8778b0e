"""A Valkey or Redis server of one's own, for demos, development and tests: not for production.

    with Server.start() as server:
        queue = Queue("mail", url=server.url)

The server listens on a unix socket (or, with ``tcp=True``, on a free port of the loopback
interface), writes nothing to the terminal, and ends with the process that started it, however that
process ends. This package knows nothing of the rest of bide and needs no client library.
"""

from bide.embedded.find import OLDEST, ServerNotFound, find_server, wheel_server
from bide.embedded.server import Server, ServerError

__all__ = ["OLDEST", "Server", "ServerError", "ServerNotFound", "find_server", "wheel_server"]
