-- fsck_queue: look at what a queue holds beside its jobs, and mend it.
-- @key   meta       looks, removes or sets what cannot be read
-- @key   due        looks at its type
-- @key   jobs       looks at its type
-- @key   run        looks at its type
-- @key   results    looks at its type
-- @key   notes      looks at its type
-- @key   terms      looks at its type
-- @key   minutes    looks at its type
-- @key   expiring   looks at its type
-- @key   order      looks at its type
-- @key   held       looks at its type
-- @key   groups     looks at its type
-- @key   turns      looks at its type
-- @key   unique     looks, removes
-- @key   folded     looks, removes
-- @key   blocked    looks at its type
-- @key   edges      looks at its type
-- @key   active     looks at its type
-- @key   completed  looks at its type
-- @key   failed     looks at its type
-- @key   cancelled  looks at its type
-- @key   asked      looks at its type
-- @key   waiters    looks at its type
-- @key   wake       cuts
-- @key   keep       looks, removes
-- @key   park       looks, removes
-- @key   claims     looks, removes
-- @key   schedules  looks at its type
-- @key   schedule   looks at its type
-- @key   scheduled  looks at its type
-- @key   events     looks, removes
-- @key   listeners  looks, removes
-- @key   trash      looks
-- @key   aside      receives what is of another type than its key
-- @arg   part       text     types | one of what else there is (`protocol/commands/fsck.py`)
-- @arg   cursor     text     where to go on, as the reply before said; 0 to begin
-- @arg   limit      integer  how many to look at, about
-- @arg   repair     integer  1 to mend what is found, 0 only to say it
-- @rest  field form
-- @reply ok now cursor    where to go on, 0 at the end; then per finding: kind id says fix
-- @include clock fsck_record dedup_keys

-- field, form: what `meta` may hold, and the pattern of its value
local DAY = 86400000000
local AHEAD = {calm_until = 300000000, drain_until = 30000000, listened = 7 * DAY,
  clock = 36600 * DAY, rewound_until = 36600 * DAY, held_until = 36600 * DAY, spent = 36600 * DAY}
local SLACK, FAR = 60000000, 100000000000000000
-- Enough that nothing is removed before somebody says again what is to be kept.
local KEEP_ALL = '1000000 31536000000000 1000000 31536000000000 1000000 31536000000000'

local now = clock.now(meta)
local latest = now -- not what `meta` says, while its type is in doubt
if part ~= 'types' then
  local set = redis.call('HMGET', meta, 'clock', 'rewound_until')
  latest = fsck_record.latest(now, set[1], set[2])
end
-- Removes first, because a full server refuses what adds before.
if repair == 1 and part ~= 'types' then redis.call('HDEL', meta, '') end
local next_cursor = '0'
local found = {}
local function tell(kind, id, says, fix)
  for _, word in ipairs({kind, id, says, fix}) do found[#found + 1] = word end
  return repair == 1 and fix ~= ''
end

local function check_type(where, wanted)
  local type_of = redis.call('TYPE', where).ok
  if type_of == 'none' or type_of == wanted then return end
  local free
  for i = #aside, 1, -1 do
    if redis.call('EXISTS', aside[i]) == 0 then free = aside[i] end
  end
  local says = 'is a ' .. type_of .. ', where a ' .. wanted .. ' belongs'
  if not free then
    tell('type', where, says, '')
  elseif tell('type', where, says, 'is moved to ' .. free) then
    redis.call('RENAME', where, free)
  end
end

local hashes = {meta, jobs, run, results, notes, terms, minutes, groups, claims, schedule,
  scheduled, unique, folded}
local zsets = {active, completed, failed, cancelled, asked, waiters, keep, park, listeners,
  expiring, schedules, order, held, turns, blocked, edges}
for i = 1, #due do zsets[#zsets + 1] = due[i] end
for i = 1, #trash do zsets[#zsets + 1] = trash[i] end

local function check_types()
  for _, where in ipairs(hashes) do check_type(where, 'hash') end
  for _, where in ipairs(zsets) do check_type(where, 'zset') end
  check_type(wake, 'list')
  check_type(events, 'stream')
end

-- What each field of `meta` is without a value that can be read.
local function mend(field)
  if field == 'paused' or field == 'own' or field == 'large' or field == 'terms'
    or field == 'groups' or field == 'edges' or field == 'trash' or field == 'limited'
    or field == 'scheduled' then
    if tell('meta', field, 'does not say 1', 'says 1') then redis.call('HSET', meta, field, 1) end
  elseif field == 'retention' then
    if tell('meta', field, 'cannot be read', 'keeps all for a year: say again what to keep') then
      redis.call('HSET', meta, field, KEEP_ALL)
    end
  elseif field == 'rate' or field == 'concurrency' then
    if tell('meta', field, 'cannot be read', 'is removed: say again what the limit is') then
      redis.call('HDEL', meta, field)
    end
  elseif tell('meta', field, 'cannot be read', 'is removed') then
    redis.call('HDEL', meta, field)
  end
end

local function check_meta()
  local forms = {}
  for i = rest, #ARGV, 2 do forms[ARGV[i]] = ARGV[i + 1] end
  local scanned = redis.call('HSCAN', meta, cursor, 'COUNT', limit)
  next_cursor = scanned[1]
  for i = 1, #scanned[2], 2 do
    local field, value = scanned[2][i], scanned[2][i + 1]
    local at = tonumber(string.match(value, '^%d+'))
    if not forms[field] then
      if not string.find(field, '^test_') then
        tell('unknown', field, 'is a field of meta that this version of bide does not know', '')
      end
    elseif not string.find(value, forms[field]) or #value > 200 or (at or 0) > FAR then
      mend(field)
    elseif AHEAD[field] and at > latest + AHEAD[field] + SLACK then
      if tell('meta', field, 'lies too far ahead: ' .. value, 'is removed') then
        redis.call('HDEL', meta, field)
      end
    end
  end
  if redis.call('HEXISTS', meta, 'limited') == 0 then
    local has_limits = false
    for _, field in ipairs({'rate', 'concurrency', 'held_until'}) do
      local value = redis.call('HGET', meta, field)
      has_limits = has_limits or (value and string.find(value, forms[field])
        and #value < 51 and tonumber(string.match(value, '^%d+')) <= FAR)
    end
    if has_limits and tell('meta', 'limited', 'is not set, and there are limits', 'is set') then
      redis.call('HSET', meta, 'limited', 1)
    end
  end
  if redis.call('HEXISTS', meta, 'terms') == 0 and redis.call('EXISTS', terms) == 1
    and tell('meta', 'terms', 'is not set, and there are jobs with terms', 'is set') then
    redis.call('HSET', meta, 'terms', 1)
  end
  if redis.call('HEXISTS', meta, 'groups') == 0 and redis.call('EXISTS', groups) == 1
    and tell('meta', 'groups', 'is not set, and there are groups', 'is set') then
    redis.call('HSET', meta, 'groups', 1)
  end
  if redis.call('HEXISTS', meta, 'edges') == 0 and redis.call('EXISTS', edges) == 1
    and tell('meta', 'edges', 'is not set, and jobs wait for others', 'is set') then
    redis.call('HSET', meta, 'edges', 1)
  end
  if redis.call('HEXISTS', meta, 'trash') == 0 then
    for i = 1, #trash do
      if redis.call('EXISTS', trash[i]) == 1 then
        if tell('meta', 'trash', 'is not set, and there is a trash', 'is set') then
          redis.call('HSET', meta, 'trash', 1)
        end
        return
      end
    end
  end
end

local function check_hints()
  local length = redis.call('LLEN', wake)
  if length > 1 and tell('wake', '', 'holds ' .. length .. ' hints, where one is enough',
    'is cut to one') then
    redis.call('LTRIM', wake, 0, 0)
  end
end

-- The stream is there while someone holds it open, and until its time is over.
local function check_events()
  local set = redis.call('HMGET', meta, 'listened', 'told')
  local until_us, opened = string.match(set[1] or '', '^(%d+) (%d+)$')
  local last = redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)[1]
  local is_open = opened and tonumber(until_us) > now
  local told = fsck_record.moment(string.match(set[2] or '', '^%d+$'), 0, FAR) or 0
  local says
  if is_open and redis.call('EXISTS', listeners) == 0 then
    says = 'is open, and has no listener'
  elseif last then
    local last_opened, last_n = string.match(last[1], '^(%d+)-(%d+)$')
    if opened and (last_opened ~= opened or tonumber(last_n) > told) then
      says = 'has entries of another program'
    elseif redis.call('PTTL', events) == -1 then
      says = 'would never expire'
    end
  end
  if says and tell('events', '', says, 'is removed; who listens sees a gap') then
    redis.call('DEL', events, listeners)
    redis.call('HDEL', meta, 'listened', 'told')
  end
end

-- Promises of workers, and of listeners: none reaches further than `most` from now.
local function check_promises(where, most)
  local scanned = redis.call('ZSCAN', where, cursor, 'COUNT', limit)
  next_cursor = scanned[1]
  for i = 1, #scanned[2], 2 do
    local who, score = scanned[2][i], scanned[2][i + 1]
    local says
    if not fsck_record.moment(score, math.min(0, now), latest + most) then
      says = 'its score is not a possible time: ' .. score
    elseif tonumber(score) < now - 7 * DAY then
      says = 'was over a week ago'
    elseif part == 'park' and redis.call('ZSCORE', keep, who) then
      says = 'also keeps the time'
    end
    if says and tell(part, who, says, 'is removed') then redis.call('ZREM', where, who) end
  end
end

local function check_claims()
  local scanned = redis.call('HSCAN', claims, cursor, 'COUNT', limit)
  next_cursor = scanned[1]
  for i = 1, #scanned[2], 2 do
    local who, value = scanned[2][i], scanned[2][i + 1]
    local at = string.match(value, '^(%d+) %d+ ')
    local says
    if not at then
      says = 'what it took last cannot be read'
    elseif not fsck_record.moment(at, 0, latest + DAY) then
      says = 'it took something at a time that lies too far ahead: ' .. at
    end
    if says and tell('claims', who, says, 'is removed') then redis.call('HDEL', claims, who) end
  end
end

-- Who holds which key, and calls that were folded: `judge` says what is wrong with a value.
local function check_each(where, judge)
  local scanned = redis.call('HSCAN', where, cursor, 'COUNT', limit)
  next_cursor = scanned[1]
  for i = 1, #scanned[2], 2 do
    local field = scanned[2][i]
    local says = judge(field, scanned[2][i + 1])
    if says and tell(part, field, says, 'is removed') then redis.call('HDEL', where, field) end
  end
end

local function judge_entry(field, text)
  local entry = dedup_keys.read(text)
  if not entry or not string.find(field, '^[udtg]:') then return 'who holds it cannot be read' end
  if not fsck_record.moment(string.match(text, '^%S+ %w+ (%d+)'), 0, latest + DAY) then
    return 'it came at a time that lies too far ahead'
  end
end

local function judge_folded(_, text)
  local at = string.match(text, '^(%d+) %l+ %d+ %S+$')
  if not at then return 'what it came to cannot be read' end
  if not fsck_record.moment(at, 0, latest + DAY) then
    return 'it came at a time that lies too far ahead'
  end
end

-- Keys that carry the queue's name, and are none of its keys.
local function check_keys()
  local known = {}
  for _, some in ipairs({hashes, zsets, aside, {wake, events}}) do
    for _, where in ipairs(some) do known[where] = true end
  end
  local begin = string.gsub(meta, '[][*?\\^-]', '\\%0')
  local scanned = redis.call('SCAN', cursor, 'MATCH', begin .. '*', 'COUNT', limit)
  next_cursor = scanned[1]
  for _, where in ipairs(scanned[2]) do
    if not known[where] then
      tell('unknown', where, 'is a key that this version of bide does not know', '')
    end
  end
end

if part == 'types' then
  check_types()
elseif part == 'meta' then
  check_meta()
elseif part == 'hints' then
  check_hints()
elseif part == 'events' then
  check_events()
elseif part == 'keep' then
  check_promises(keep, SLACK)
elseif part == 'park' then
  check_promises(park, SLACK)
elseif part == 'listeners' then
  check_promises(listeners, 7 * DAY)
elseif part == 'claims' then
  check_claims()
elseif part == 'unique' then
  check_each(unique, judge_entry)
elseif part == 'folded' then
  check_each(folded, judge_folded)
elseif part == 'keys' then
  check_keys()
else
  return redis.error_reply('BADARG fsck_queue part')
end
return {'ok', now, next_cursor, unpack(found)}
