-- fsck_groups: look at a piece of what is known of groups, and mend what does not agree.
-- @key   meta    reads settings
-- @key   due     looks
-- @key   terms   looks
-- @key   active  looks
-- @key   order   looks, removes
-- @key   held    looks, removes
-- @key   groups  looks, rewrites, removes
-- @key   turns   looks, moves markers
-- @key   trash   looks
-- @key   wake    hints when a group has its turn
-- @arg   part    text     order | held | groups | turns
-- @arg   cursor  text     where to go on, as the reply before said; 0 to begin
-- @arg   limit   integer  how many to look at, about
-- @arg   repair  integer  1 to mend what is found, 0 only to say it
-- @reply ok now cursor    where to go on, 0 at the end; then per finding: kind id says fix
-- @include clock fsck_record wakeup group

-- That a job is missing in `order` or `held`, `fsck_jobs` finds. No group is lost: what is removed
-- is of no job.
local PIECE = 8

local now = clock.now(meta)
local keys = {order = order, held = held, groups = groups, turns = turns}
local key = keys[part]
if not key or not string.find(cursor, '^%d+$') then
  return redis.error_reply('BADARG fsck_groups part')
end
local sets = {due = due, order = order, held = held, groups = groups, turns = turns}
local trashed = redis.call('EXISTS', trash[group.GROUPED]) == 1
local set = redis.call('HMGET', meta, 'clock', 'rewound_until')
local latest = fsck_record.latest(now, set[1], set[2])
-- Removes first, because a full server refuses what adds before.
if repair == 1 then redis.call('HDEL', meta, '') end

local scanned
if part == 'groups' then
  scanned = redis.call('HSCAN', key, cursor, 'COUNT', limit)
else
  scanned = redis.call('ZSCAN', key, cursor, 'COUNT', limit)
end
local reply = {'ok', now, scanned[1]}
local touched = {}
local function tell(kind, id, says, fix)
  for _, word in ipairs({kind, id, says, fix}) do reply[#reply + 1] = word end
  return repair == 1
end

local function touch(name)
  touched[name] = touched[name] or group.read(sets, name)
  return touched[name]
end

local function is_of(name, id) return group.of(redis.call('HGET', terms, id)) == name end

local function check_record(name)
  if redis.call('HEXISTS', groups, name) == 0
    and tell('groups', name, 'has jobs, and nothing is noted of it', 'is noted again') then
    touch(name)
  end
end

local function check_order(entry)
  local name, at, id = string.match(entry, '^(%S+) (%d+) (%S+)$')
  local due_us = id and tonumber(redis.call('ZSCORE', due[group.GROUPED], id))
  if due_us and group.entry(name, due_us, id) == entry and tonumber(at) == due_us
    and is_of(name, id) then
    check_record(name)
  elseif tell('order', id or entry, 'no such job of ' .. (name or '?') .. ' waits, or not then',
    'the entry is removed') then
    redis.call('ZREM', order, entry)
    if name then touch(name) end
  end
end

local function check_held(entry)
  local name, id = string.match(entry, '^(%S+) (%S+)$')
  if id and redis.call('ZSCORE', active, id) and is_of(name, id) then
    check_record(name)
  elseif tell('held', id or entry, 'no such job of ' .. (name or '?') .. ' runs',
    'counts no longer') then
    redis.call('ZREM', held, entry)
    if name then touch(name) end
  end
end

-- When a group's next job is due; nothing is changed where it is not the first that is noted.
local function next_due(name)
  local least, most = group.within(name)
  for _, entry in ipairs(redis.call('ZRANGEBYLEX', order, least, most, 'LIMIT', 0, PIECE)) do
    local at, id = string.match(entry, ' (%d+) (%S+)$', #name + 1)
    local score = id and redis.call('ZSCORE', due[group.GROUPED], id)
    if score and tonumber(score) == tonumber(at) then return tonumber(at) end
  end
end

local function check_group(name, text)
  local grp = group.parse(text, name)
  if not grp.is_known then
    if tell('groups', name, 'its record cannot be read', 'its record is rewritten') then
      touch(name)
    end
    return
  end
  local at, running = next_due(name), group.running(sets, name)
  local is_idle = not at and running == 0 and grp.set == 0 and grp.paused == 0 and not grp.rate
  local says
  if is_idle and not trashed then
    says = 'has no jobs, and is noted'
  elseif not is_idle then
    local may_begin = at and grp.paused == 0 and running < group.limit(grp)
    local has_marker = grp.level > 0 and redis.call('ZSCORE', turns, group.marker(grp))
    if may_begin and not has_marker then
      says = 'may begin a job, and has no marker'
    elseif not may_begin and grp.level > 0 and (at or has_marker or not trashed) then
      says = 'may begin no job, and has a marker'
    elseif may_begin and ((grp.level ~= group.ALONE and grp.level ~= 10 - grp.priority)
      or grp.turn > math.max(at, latest, grp.free)) then
      says = 'has its marker in a wrong place'
    end
  end
  if says and tell('groups', name, says, 'its record is rewritten') then touch(name) end
end

local function check_turn(marker)
  local name = string.match(marker, '^%l %d+ (%S+)$')
  local grp = name and group.read(sets, name)
  if grp and grp.level > 0 and group.marker(grp) == marker then return end
  if tell('turns', name or marker, 'has a marker that it should not have', 'it is removed') then
    redis.call('ZREM', turns, marker)
    if name then touch(name) end
  end
end

local checks = {order = check_order, held = check_held, turns = check_turn}
for i = 1, #scanned[2], 2 do
  local member, value = scanned[2][i], scanned[2][i + 1]
  if part == 'groups' then
    check_group(member, value)
  else
    checks[part](member)
    if tonumber(value) ~= 0 and redis.call('ZSCORE', key, member)
      and tell('score', member, 'its score in ' .. part .. ' is not 0: ' .. value, 'becomes 0') then
      redis.call('ZADD', key, 0, member)
    end
  end
end
if repair == 1 and group.turns(sets, touched, now) then wakeup.push(wake, '-') end
return reply
