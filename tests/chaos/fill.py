"""A very full queue, made in seconds: what a million enqueues and much history would leave.

It writes the scripts' own layout from inside the server, and is held to be legal by `assert_legal`
at a small size.
"""

from __future__ import annotations

import redis

from bide.protocol.keys import Keys

_DUE = """
local now, first, count = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
for i = first, first + count - 1 do
  local id = string.format('due-%016d', i)
  -- nine in ten of the usual priority, the others spread over all
  local set = i % 10 > 0 and KEYS[6] or KEYS[1 + math.floor(i / 10) % 10]
  redis.call('ZADD', set, now - 1000000 + i % 1000, id)
  redis.call('HSET', KEYS[#KEYS], id, '{"task":"app:task","args":[' .. i .. ']}')
end
"""

_GROUPS = """
local now, first, count, groups = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
for i = first, first + count - 1 do
  local name = groups == '1' and 'large' or string.format('group-%06d', i % tonumber(groups))
  local id = string.format('in-%s-%012d', name, i)
  local at = now - 1000000 + i % 1000
  redis.call('ZADD', KEYS[1], at, id)
  redis.call('ZADD', KEYS[2], 0, string.format('%s %017.0f %s', name, at, id))
  redis.call('HSET', KEYS[3], id, '{"task":"app:task","args":[' .. i .. ']}')
  redis.call('HSET', KEYS[4], id, 'g=' .. name)
  if i < tonumber(groups) then
    redis.call('HSET', KEYS[5], name, string.format('9 0 0 0 1 %.0f', now))
    redis.call('ZADD', KEYS[6], 0, string.format('a %017.0f %s', now, name))
  end
end
"""

_HISTORY = """
local now, count, kind, stamp = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4]
for i = 1, count do
  local id = string.format('%s-%012d', kind, i)
  local at = now - 60000000 - i
  redis.call('ZADD', KEYS[1], at, id)
  redis.call('HSET', KEYS[2], id, '{"task":"app:task","args":[' .. i .. ']}')
  if stamp ~= '' then
    redis.call('HSET', KEYS[3], id, string.format(
      '%016.0f%s0000000000000000- 5 1 0 0 0 %.0f dead %.0f', at, stamp, at, at))
  end
  if stamp == 'C' then redis.call('HSET', KEYS[4], id, '{"ok":true}') end
  if stamp == 'F' then redis.call('HSET', KEYS[5], id, string.format(
    'E 1 %.0f %.0f dead {"type":"E","message":"no"}', at, at)) end
end
"""

_STAMPS = {"active": "-", "completed": "C", "failed": "F", "cancelled": ""}


def fill(client: redis.Redis, keys: Keys, due: int, history: int, workers: int) -> None:
    """Fill a queue: `due` waiting jobs; `history` each of expired leases, completed, failed and
    cancelled jobs, all older than a minute; and what so many workers leave behind."""
    seconds, micros = client.time()
    now = seconds * 1_000_000 + micros
    add = client.register_script(_DUE)
    for first in range(0, due, 50_000):
        add([*keys.names["due"], keys["jobs"]], [now, first, min(50_000, due - first)])
    for kind, stamp in _STAMPS.items():
        names = [keys[name] for name in (kind, "jobs", "run", "results", "notes")]
        client.register_script(_HISTORY)(names, [now, history, kind, stamp])
    taken = " ".join(f"gone-{i:020d}" for i in range(500))
    pipe = client.pipeline(transaction=False)
    for i in range(workers):
        pipe.hset(keys["claims"], f"gone-{i}", f"{now - 10**9} 7 {taken}")
        pipe.zadd(keys["keep"], {f"gone-{i}": now + 1_000_000 + i})
        pipe.zadd(keys["park"], {f"gone-{i}": now + 9_000_000 + i})
    pipe.execute()


def fill_groups(client: redis.Redis, keys: Keys, count: int, groups: int) -> None:
    """Waiting jobs of the highest priority in so many groups; of one alone, it is `large`."""
    seconds, micros = client.time()
    add = client.register_script(_GROUPS)
    names = [keys[name] for name in ("order", "jobs", "terms", "groups", "turns")]
    for first in range(0, count, 25_000):
        some = min(25_000, count - first)
        add([keys.names["due"][-1], *names], [seconds * 10**6 + micros, first, some, groups])
    client.hset(keys["meta"], mapping={"terms": 1, "groups": 1})
