-- The shared part of all checks: a part of a key that one call reads, and its findings.
-- @arg cursor  text     the cursor of the last reply; 0 to start
-- @arg limit   integer  the approximate number of entries to check
-- @arg repair  integer  1 to repair findings, 0 only to report them
-- @reply ok now cursor    the next cursor, 0 at the end; then per finding: kind id says fix
local fsck = {DAY = 86400000000}

local YEAR = 366 * fsck.DAY
local NOTHING = '\0' -- no name that is stored
local after, found = '0', {}

-- Adds a finding; true where it is to be repaired.
function fsck.tell(kind, id, says, fix)
  for _, word in ipairs({kind, id, says, fix}) do found[#found + 1] = word end
  return repair == 1 and fix ~= ''
end

function fsck.reply() return {'ok', now, after, unpack(found)} end

local function go_through(page, judge)
  after = page[1]
  for i = 1, #page[2], 2 do judge(page[2][i], page[2][i + 1]) end
end

-- Calls `judge` with what stands in a piece of a hash, or of a set with scores: name and value of
-- each. `is_heavy`: values may be large. Removes first, because a full server refuses what adds
-- before.
function fsck.hash(hash, judge, is_heavy)
  if repair == 1 then redis.call('HDEL', hash, NOTHING) end
  go_through(is_heavy and read_budget.scan(hash, cursor, limit)
    or redis.call('HSCAN', hash, cursor, 'COUNT', limit), judge)
end

function fsck.zset(zset, judge)
  if repair == 1 then redis.call('ZREM', zset, NOTHING) end
  go_through(redis.call('ZSCAN', zset, cursor, 'COUNT', limit), judge)
end

function fsck.keys(pattern, judge)
  local page = redis.call('SCAN', cursor, 'MATCH', pattern, 'COUNT', limit)
  after = page[1]
  for _, key in ipairs(page[2]) do judge(key) end
end

-- Removes each entry of which `judge` says what is wrong with it.
function fsck.prune_hash(kind, hash, judge)
  fsck.hash(hash, function(name, value)
    local says = judge(name, value)
    if says and fsck.tell(kind, name, says, 'is removed') then redis.call('HDEL', hash, name) end
  end)
end

-- Whether the key of a script that checks nothing else is a hash.
function fsck.is_hash(key)
  local type_of = redis.call('TYPE', key).ok
  if type_of == 'hash' or type_of == 'none' then return true end
  fsck.tell('type', key, 'is a ' .. type_of .. ', where a hash belongs', '')
  return false
end

-- A score as a moment in whole microseconds; nothing where it is none.
function fsck.moment(score, least, most)
  local at = tonumber(score)
  if at and at == at and at >= least and at <= most and at % 1 == 0 then return at end
end

-- The latest that the server's clock has shown: what was written before it was set back lies ahead
-- of now, which is not an error. `mark` and `rewound` are fields of `meta`.
function fsck.latest(mark, rewound)
  local latest = now
  for _, at in ipairs({mark or false, rewound or false}) do
    latest = math.max(latest, at and fsck.moment(at, 0, latest + 100 * YEAR) or 0)
  end
  return latest
end

return fsck
