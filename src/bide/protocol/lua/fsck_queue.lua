-- fsck_queue: check the data of a queue besides its jobs, and repair them.
-- @arg   part       text     types | one of what else there is (`protocol/commands/fsck.py`)
-- @rest  field form

-- field, form: what `meta` may hold, and the pattern of its value
local DAY = fsck.DAY
local AHEAD = {calm_until = 300000000, declared_until = 30000000, drain_until = 30000000,
  listened = 7 * DAY, clock = 36600 * DAY, rewound_until = 36600 * DAY,
  held_until = 36600 * DAY, spent = 36600 * DAY}
local SLACK, FAR = 60000000, 100000000000000000
-- Enough that nothing is removed before somebody says again what is to be kept.
local KEEP_ALL = '1000000 31536000000000 1000000 31536000000000 1000000 31536000000000'

-- What each field of `meta` becomes whose value cannot be read: what is wrong, what is done, and
-- the value that it then has, if any.
local MARK = {'does not say 1', 'says 1', 1}
local NO_LIMIT = {'cannot be read', 'is removed: say again what the limit is'}
local REPAIRS = {paused = MARK, own = MARK, large = MARK, terms = MARK, groups = MARK, edges = MARK,
  trash = MARK, limited = MARK, scheduled = MARK, rate = NO_LIMIT, concurrency = NO_LIMIT,
  group_rate = NO_LIMIT,
  retention = {'cannot be read', 'keeps all for a year: say again what to keep', KEEP_ALL}}
local UNREADABLE = {'cannot be read', 'is removed'}

local tell = fsck.tell
local latest = now -- not what `meta` says, while its type is in doubt
if part ~= 'types' then
  latest = fsck.latest(unpack(redis.call('HMGET', meta, 'clock', 'rewound_until')))
end
local hashes = {meta, jobs, run, results, notes, terms, minutes, groups, claims, schedule,
  scheduled, unique, folded}
local zsets = {active, completed, failed, cancelled, asked, waiters, keep, park, listeners,
  expiring, schedules, order, held, turns, resting, blocked, edges}
for _, some in ipairs({due, trash}) do
  for _, key in ipairs(some) do zsets[#zsets + 1] = key end
end

local function check_type(key, wanted)
  local type_of = redis.call('TYPE', key).ok
  if type_of == 'none' or type_of == wanted then return end
  local free
  for i = #aside, 1, -1 do
    if redis.call('EXISTS', aside[i]) == 0 then free = aside[i] end
  end
  local says = 'is a ' .. type_of .. ', where a ' .. wanted .. ' belongs'
  if tell('type', key, says, free and 'is moved to ' .. free or '') then
    redis.call('RENAME', key, free)
  end
end

local checks = {}

function checks.types()
  for _, key in ipairs(hashes) do check_type(key, 'hash') end
  for _, key in ipairs(zsets) do check_type(key, 'zset') end
  check_type(wake, 'list')
  check_type(events, 'stream')
end

-- Sets a mark of `meta` that is missing, where there is what it stands for.
local function check_mark(field, is_needed, says)
  if redis.call('HEXISTS', meta, field) == 0 and is_needed()
    and tell('meta', field, 'is not set, and ' .. says, 'is set') then
    redis.call('HSET', meta, field, 1)
  end
end

local function exists(...)
  local keys = {...}
  return function()
    for _, key in ipairs(keys) do
      if redis.call('EXISTS', key) == 1 then return true end
    end
  end
end

function checks.meta()
  local forms = {}
  for i = rest, #ARGV, 2 do forms[ARGV[i]] = ARGV[i + 1] end
  fsck.hash(meta, function(field, value)
    local at = tonumber(string.match(value, '^%d+'))
    local wrong
    if not forms[field] then
      if not string.find(field, '^test_') then
        tell('unknown', field, 'is a field of meta that this version of bide does not know', '')
      end
    elseif not string.find(value, forms[field]) or #value > 200 or (at or 0) > FAR then
      wrong = REPAIRS[field] or UNREADABLE
    elseif AHEAD[field] and at > latest + AHEAD[field] + SLACK then
      wrong = {'lies too far ahead: ' .. value, 'is removed'}
    end
    if not wrong or not tell('meta', field, wrong[1], wrong[2]) then return end
    if wrong[3] then
      redis.call('HSET', meta, field, wrong[3])
    else
      redis.call('HDEL', meta, field)
    end
  end)
  check_mark('limited', function()
    for _, field in ipairs({'rate', 'concurrency', 'held_until'}) do
      local value = redis.call('HGET', meta, field)
      if value and string.find(value, forms[field]) and #value < 51
        and tonumber(string.match(value, '^%d+')) <= FAR then
        return true
      end
    end
  end, 'there are limits')
  check_mark('terms', exists(terms), 'there are jobs with constraints')
  check_mark('groups', exists(groups), 'there are groups')
  check_mark('edges', exists(edges), 'jobs wait for others')
  check_mark('trash', exists(unpack(trash)), 'there is a trash')
end

function checks.wakeups()
  local length = redis.call('LLEN', wake)
  if length > 1 and tell('wake', '', 'holds ' .. length .. ' wake-up messages, where one is enough',
    'is cut to one') then
    redis.call('LTRIM', wake, 0, 0)
  end
end

-- The stream is there while someone holds it open, and until its time is over.
function checks.events()
  local set = redis.call('HMGET', meta, 'listened', 'told')
  local until_us, opened = string.match(set[1] or '', '^(%d+) (%d+)$')
  local last = redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)[1]
  local is_open = opened and tonumber(until_us) > now
  local told = fsck.moment(string.match(set[2] or '', '^%d+$'), 0, FAR) or 0
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

-- Deadlines of workers, and of listeners: none reaches further than so long from now.
local DEADLINES = {keep = {keep, SLACK}, park = {park, SLACK}, listeners = {listeners, 7 * DAY}}

local function check_deadlines(zset, most)
  fsck.zset(zset, function(who, score)
    local says
    if not fsck.moment(score, math.min(0, now), latest + most) then
      says = 'its score is not a possible time: ' .. score
    elseif tonumber(score) < now - 7 * DAY then
      says = 'was over a week ago'
    elseif part == 'park' and redis.call('ZSCORE', keep, who) then
      says = 'is also a timekeeper'
    end
    if says and tell(part, who, says, 'is removed') then redis.call('ZREM', zset, who) end
  end)
end

-- What is noted with a time: how that is found, and what is said of what has none, or a later one.
local NOTED = {
  claims = {claims, '^(%d+) %d+ ', 'what it took last cannot be read',
    'it took something at a time that lies too far ahead: '},
  unique = {unique, '^%S+ %w+ (%d+)', 'who holds it cannot be read',
    'it came at a time that lies too far ahead'},
  folded = {folded, '^(%d+) %l+ %d+ %S+$', 'what it came to cannot be read',
    'it came at a time that lies too far ahead'},
}

local function check_noted(hash, form, unreadable, ahead)
  fsck.prune_hash(part, hash, function(field, text)
    local at = string.match(text, form)
    local is_odd = part == 'unique'
      and not (dedup_keys.read(text) and string.find(field, '^[udtg]:'))
    if not at or is_odd then return unreadable end
    if fsck.moment(at, 0, latest + DAY) then return nil end
    return part == 'claims' and ahead .. at or ahead
  end)
end

-- Keys that carry the queue's name, and are none of its keys.
function checks.keys()
  local known = {}
  for _, some in ipairs({hashes, zsets, aside, {wake, events}}) do
    for _, key in ipairs(some) do known[key] = true end
  end
  fsck.keys((string.gsub(meta, '[][*?\\^-]', '\\%0')) .. '*', function(key)
    if not known[key] then
      tell('unknown', key, 'is a key that this version of bide does not know', '')
    end
  end)
end

if DEADLINES[part] then
  check_deadlines(unpack(DEADLINES[part]))
elseif NOTED[part] then
  check_noted(unpack(NOTED[part]))
elseif checks[part] then
  checks[part]()
else
  return redis.error_reply('BADARG fsck_queue part')
end
return fsck.reply()
