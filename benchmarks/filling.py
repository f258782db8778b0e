"""A queue filled in seconds: what as many enqueues of delayed jobs would leave, written directly.

Ten million real enqueues take half an hour. A script of our own writes the same layout; that it is
the same, `bide fsck` says of a small one.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

import redis

from benchmarks import tasks
from benchmarks.lab import QUEUE
from bide import Queue
from bide.cli.health import look
from bide.client import blocking
from bide.embedded import Server
from bide.protocol.commands.queues import register_queues
from bide.protocol.keys import DEFAULT_PRIORITY, DUE_SETS, keys_of
from bide.views._sync import Site

CHUNK = 20_000
"""Jobs per call."""

_FILL = """
local first, count = tonumber(ARGV[1]), tonumber(ARGV[2])
local at, span = tonumber(ARGV[3]), tonumber(ARGV[4])
for from = first, first + count - 1, 100 do
  local due, bodies = {}, {}
  for i = from, math.min(from + 99, first + count - 1) do
    local id = string.format('%020d', i)
    due[#due + 1] = at + i * 48271 % span -- scattered, as those of many producers are
    due[#due + 1] = id
    bodies[#bodies + 1] = id
    bodies[#bodies + 1] = ARGV[5] .. i .. ARGV[6]
  end
  redis.call('ZADD', KEYS[1], unpack(due))
  redis.call('HSET', KEYS[2], unpack(bodies))
end
"""


def fill(server: Server, count: int, delay_us: int, span_us: int) -> None:
    """Add jobs that do nothing, due within `span_us` from `delay_us` from now on."""
    keys = keys_of(QUEUE)
    with closing(blocking.Client(server.url)) as maker:
        maker.run(register_queues(keys_of(None), [QUEUE]))
    with closing(Queue(QUEUE, url=server.url)) as queue:
        body = queue.prepare(tasks.nothing, (0,)).body
    head, _, tail = body.partition(b"[0]")
    due = keys.names["due"][DUE_SETS.index(str(DEFAULT_PRIORITY))]
    client: Any = redis.Redis.from_url(server.url)
    seconds, micros = client.time()
    at = seconds * 1_000_000 + micros + delay_us
    add = client.register_script(_FILL)
    for first in range(0, count, CHUNK):
        chunk = min(CHUNK, count - first)
        add([due, keys["jobs"]], [first, chunk, at, span_us, head + b"[", b"]" + tail])
    client.close()


def check(binary: str) -> None:
    """Make sure that the layout is what bide's own check takes for sound.

    Raises:
        RuntimeError: it is not; then no figure here means anything.
    """
    with Server.start(binary=binary) as server:
        fill(server, 1_000, 3_600_000_000, 3_600_000_000)
        found = [*look(Site(server.url, None), (QUEUE,), False)]
        with closing(Queue(QUEUE, url=server.url)) as queue:
            delayed = queue.counts().delayed
    if found or delayed != 1_000:
        raise RuntimeError(f"the queue was filled wrongly: {delayed} jobs are delayed, {found[:3]}")
