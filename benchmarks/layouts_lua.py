"""The Lua of ``layouts.py``: what each layout of the keys does with a batch of jobs.

A layout of a waiting job supplies ``member``, ``add``, ``fetch`` and ``drop``; a form of the
claimed job's record supplies ``read``, ``write`` and ``mark``. The scripts around them are shared,
so what differs in the figures is the layout. They use commands of many arguments where the layout
allows it.
"""

from __future__ import annotations

PAGE = 40

# ------------------------------------------------------------------------- layouts of a waiting job

# Each has a sorted set of what is due; they differ in where the body is.
# KEYS: due, active, jobs. A layout that makes key names from ids makes them from KEYS[3].
# `add` stores a body unless the id exists, and says whether it did.
ENQUEUE = """
local z = {}
for i = 1, #ARGV, 3 do
  local id, body = ARGV[i], ARGV[i + 1]
  if add(id, body) then
    z[#z + 1] = ARGV[i + 2]
    z[#z + 1] = member(id, body)
  end
end
if #z == 0 then return 0 end
return redis.call('ZADD', KEYS[1], 'NX', unpack(z))
"""

CLAIM = """
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[2])
if #found == 0 then return {} end
local z = {}
for i, id in ipairs(found) do
  z[2 * i - 1], z[2 * i] = ARGV[1], id
end
redis.call('ZREM', KEYS[1], unpack(found))
redis.call('ZADD', KEYS[2], unpack(z))
return {found, fetch(found)}
"""

COMPLETE = """
local gone = redis.call('ZREM', KEYS[2], unpack(ARGV))
drop(ARGV)
return gone
"""

PLAIN = "local function member(id, body) return id end\n"

BARE = """
local function add(id, body) return true end
local function fetch() return {} end
local function drop() end
"""

KEY_EACH = """
local function keys(ids)
  local t = {}
  for i, id in ipairs(ids) do t[i] = KEYS[3] .. ':' .. id end
  return t
end
local function drop(ids) redis.call('DEL', unpack(keys(ids))) end
"""

LAYOUTS: dict[str, tuple[str, str]] = {
    "A": ("no body", PLAIN + BARE),
    "B": (
        "hash key per job",
        PLAIN
        + KEY_EACH
        + """
local function add(id, body)
  return redis.call('HSETNX', KEYS[3] .. ':' .. id, 'body', body) == 1
end
local function fetch(ids)
  local t = {}
  for i, key in ipairs(keys(ids)) do t[i] = redis.call('HGET', key, 'body') end
  return t
end
""",
    ),
    "C": (
        "string key per job",
        PLAIN
        + KEY_EACH
        + """
local function add(id, body) return redis.call('SETNX', KEYS[3] .. ':' .. id, body) == 1 end
local function fetch(ids) return redis.call('MGET', unpack(keys(ids))) end
""",
    ),
    "D": (
        "one hash of bodies",
        PLAIN
        + """
local function add(id, body) return redis.call('HSETNX', KEYS[3], id, body) == 1 end
local function fetch(ids) return redis.call('HMGET', KEYS[3], unpack(ids)) end
local function drop(ids) redis.call('HDEL', KEYS[3], unpack(ids)) end
""",
    ),
    "E": (
        f"pages of {PAGE} bodies",
        PLAIN
        + """
local function page(id)
  local h = 0
  for i = -4, -1 do h = h * 31 + string.byte(id, i) end
  return KEYS[3] .. ':' .. h % @PAGES@
end
local function add(id, body) return redis.call('HSETNX', page(id), id, body) == 1 end
local function fetch(ids)
  local t = {}
  for i, id in ipairs(ids) do t[i] = redis.call('HGET', page(id), id) end
  return t
end
local function drop(ids)
  for _, id in ipairs(ids) do redis.call('HDEL', page(id), id) end
end
""",
    ),
    "F": (
        "body in the member",
        "local function member(id, body) return id .. body end\n" + BARE,
    ),
}

# ------------------------------------------------------------------------ record of a claimed job

# A record holds: the token and how it was settled ('-': not yet); the same of the claim before;
# five small counts; started; worker; due. `read` gives what a claim needs of the old one, `write`
# puts the new one, `mark` compares the token and notes the outcome.
CLAIM_RECORD = """
local now, ids = tonumber(ARGV[1]), {unpack(ARGV, 3)}
local tokens, before, attempts = read(ids)
for i in ipairs(ids) do
  tokens[i] = tokens[i] and math.max(tokens[i] + 1, now) or now
  before[i] = before[i] or '0000000000000000-'
  attempts[i] = (attempts[i] or 0) + 1
end
write(ids, tokens, before, attempts, now, ARGV[2])
for i, token in ipairs(tokens) do tokens[i] = string.format('%016.0f', token) end
return tokens
"""

SETTLE_RECORD = """
local ids, tokens, n = {}, {}, #ARGV / 2
for i = 1, n do ids[i], tokens[i] = ARGV[i], ARGV[n + i] end
return mark(ids, tokens, 'c')
"""

RECORDS: dict[str, tuple[str, str]] = {
    "i": (
        "a hash key per job, six fields",
        """
local function read(ids)
  local t, b, a = {}, {}, {}
  for i, id in ipairs(ids) do
    local r = redis.call('HMGET', KEYS[1] .. ':' .. id, 'stamp', 'counts')
    if r[1] then
      t[i], b[i] = tonumber(string.sub(r[1], 1, 16)), r[1]
      a[i] = tonumber(string.match(r[2], '^%d+ (%d+)'))
    end
  end
  return t, b, a
end
local function write(ids, t, b, a, now, worker)
  for i, id in ipairs(ids) do
    redis.call('HSET', KEYS[1] .. ':' .. id, 'stamp', string.format('%016.0f-', t[i]),
      'before', b[i], 'counts', string.format('%d %d %d %d %d', 5, a[i], 0, 0, 0),
      'started', now, 'worker', worker, 'due', now)
  end
end
local function mark(ids, t, outcome)
  local ok = 0
  for i, id in ipairs(ids) do
    local key = KEYS[1] .. ':' .. id
    if redis.call('HGET', key, 'stamp') == t[i] .. '-' then
      redis.call('HSET', key, 'stamp', t[i] .. outcome)
      ok = ok + 1
    end
  end
  return ok
end
""",
    ),
    "ii": (
        "one hash, a string each",
        """
local function read(ids)
  local t, b, a = {}, {}, {}
  for i, r in ipairs(redis.call('HMGET', KEYS[1], unpack(ids))) do
    if r then
      t[i], b[i] = tonumber(string.sub(r, 1, 16)), string.sub(r, 1, 17)
      a[i] = tonumber(string.match(r, '^ %d+ (%d+)', 35))
    end
  end
  return t, b, a
end
local function write(ids, t, b, a, now, worker)
  local h = {}
  for i, id in ipairs(ids) do
    h[2 * i - 1] = id
    h[2 * i] = string.format('%016.0f-%s %d %d %d %d %d %.0f %s %.0f',
      t[i], b[i], 5, a[i], 0, 0, 0, now, worker, now)
  end
  redis.call('HSET', KEYS[1], unpack(h))
end
local function mark(ids, t, outcome)
  local h, r = {}, redis.call('HMGET', KEYS[1], unpack(ids))
  for i, id in ipairs(ids) do
    if r[i] and string.sub(r[i], 1, 17) == t[i] .. '-' then
      h[#h + 1] = id
      h[#h + 1] = t[i] .. outcome .. string.sub(r[i], 18)
    end
  end
  if #h > 0 then redis.call('HSET', KEYS[1], unpack(h)) end
  return #h / 2
end
""",
    ),
    "iii": (
        "one hash, MessagePack each",
        """
local function read(ids)
  local t, b, a = {}, {}, {}
  for i, r in ipairs(redis.call('HMGET', KEYS[1], unpack(ids))) do
    if r then
      local v = cmsgpack.unpack(r)
      t[i], b[i], a[i] = v[1], {v[1], v[2]}, v[6]
    end
  end
  return t, b, a
end
local function write(ids, t, b, a, now, worker)
  local h = {}
  for i, id in ipairs(ids) do
    local old, how = 0, '-'
    if type(b[i]) == 'table' then old, how = b[i][1], b[i][2] end
    h[2 * i - 1] = id
    h[2 * i] = cmsgpack.pack({t[i], '-', old, how, 5, a[i], 0, 0, 0, now, worker, now})
  end
  redis.call('HSET', KEYS[1], unpack(h))
end
local function mark(ids, t, outcome)
  local h, r = {}, redis.call('HMGET', KEYS[1], unpack(ids))
  for i, id in ipairs(ids) do
    local v = r[i] and cmsgpack.unpack(r[i])
    if v and v[2] == '-' and v[1] == tonumber(t[i]) then
      v[2] = outcome
      h[#h + 1] = id
      h[#h + 1] = cmsgpack.pack(v)
    end
  end
  if #h > 0 then redis.call('HSET', KEYS[1], unpack(h)) end
  return #h / 2
end
""",
    ),
    "iv": (
        "four parallel hashes",
        """
local function put(name, ids, values)
  local h = {}
  for i, id in ipairs(ids) do h[2 * i - 1], h[2 * i] = id, values[i] end
  redis.call('HSET', KEYS[1] .. name, unpack(h))
end
local function read(ids)
  local t, a = {}, {}
  local b = redis.call('HMGET', KEYS[1] .. ':stamp', unpack(ids))
  local counts = redis.call('HMGET', KEYS[1] .. ':counts', unpack(ids))
  for i in ipairs(ids) do
    if b[i] then
      t[i] = tonumber(string.sub(b[i], 1, 16))
      a[i] = tonumber(string.match(counts[i], '^%d+ (%d+)'))
    end
  end
  return t, b, a
end
local function write(ids, t, b, a, now, worker)
  local stamps, counts, rest = {}, {}, {}
  for i in ipairs(ids) do
    stamps[i] = string.format('%016.0f-', t[i])
    counts[i] = string.format('%d %d %d %d %d', 5, a[i], 0, 0, 0)
    rest[i] = string.format('%.0f %s %.0f', now, worker, now)
  end
  put(':stamp', ids, stamps)
  put(':before', ids, b)
  put(':counts', ids, counts)
  put(':rest', ids, rest)
end
local function mark(ids, t, outcome)
  local mine, stamps, r = {}, {}, redis.call('HMGET', KEYS[1] .. ':stamp', unpack(ids))
  for i, id in ipairs(ids) do
    if r[i] == t[i] .. '-' then
      mine[#mine + 1], stamps[#stamps + 1] = id, t[i] .. outcome
    end
  end
  if #mine > 0 then put(':stamp', mine, stamps) end
  return #mine
end
""",
    ),
}

# ------------------------------------------------------------------------------------- priorities

# KEYS: the due sets, highest priority first. Nothing is due in any of them.
HEADS = """
local best = nil
for _, key in ipairs(KEYS) do
  local head = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if head[1] then
    local due = tonumber(head[2])
    if due <= tonumber(ARGV[1]) then return head[1] end
    if not best or due < best then best = due end
  end
end
return string.format('%.0f', best)
"""

# One set, score = (9 - priority) * 2^52 + due: still a range for each priority.
COMPOSED = """
local best, now = nil, tonumber(ARGV[1])
for rank = 0, 9 do
  local low = rank * 4503599627370496
  local head = redis.call('ZRANGEBYSCORE', KEYS[1], string.format('%.0f', low),
    string.format('(%.0f', low + 4503599627370496), 'WITHSCORES', 'LIMIT', 0, 1)
  if head[1] then
    local due = tonumber(head[2]) - low
    if due <= now then return head[1] end
    if not best or due < best then best = due end
  end
end
return string.format('%.0f', best)
"""

# One set by due time, the priority read from the bodies: all that is due has to be looked at.
FILTER = """
local found = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
local top, best = -1, nil
for at = 1, #found, 1000 do
  local upto = math.min(at + 999, #found)
  for i, body in ipairs(redis.call('HMGET', KEYS[2], unpack(found, at, upto))) do
    local p = string.byte(body, 1) - 48
    if p > top then top, best = p, found[at + i - 1] end
  end
end
return best
"""

# KEYS: the due sets; the job is in the last of them.
PROBE = """
for _, key in ipairs(KEYS) do
  local due = redis.call('ZSCORE', key, ARGV[1])
  if due then return due end
end
"""

# KEYS: the due sets, then the bodies. The body's first byte is the priority.
READ_PRIORITY = """
local body = redis.call('HGET', KEYS[#KEYS], ARGV[1])
return redis.call('ZSCORE', KEYS[string.byte(body, 1) - 47], ARGV[1])
"""
