-- fsck_groups: check a part of the data of groups, and repair inconsistencies.
-- @arg   part    text     order | held | groups | turns | resting

-- `fsck_jobs` finds jobs that are missing in `order` or `held`: what is removed here has no job.
local PIECE = 8

local tell = fsck.tell
local trashed = redis.call('EXISTS', trash[group.GROUPED]) == 1
local latest = fsck.latest(unpack(redis.call('HMGET', meta, 'clock', 'rewound_until')))

local function touch(name) group.touched[name] = group.touched[name] or group.read(name) end

local function is_of(name, id) return group.of(redis.call('HGET', terms, id)) == name end

local function check_record(name)
  if redis.call('HEXISTS', groups, name) == 0
    and tell('groups', name, 'has jobs, and nothing is noted of it', 'is noted again') then
    touch(name)
  end
end

-- Of an entry: the name of its group, whose job it is, what is wrong with it, and what is done.
local check = {}

function check.order(entry)
  local name, at, id = string.match(entry, '^(%S+) (%d+) (%S+)$')
  local due_us = id and tonumber(redis.call('ZSCORE', due[group.GROUPED], id))
  local is_right = due_us and group.entry(name, due_us, id) == entry and tonumber(at) == due_us
    and is_of(name, id)
  return name, id, not is_right and 'no such job of ' .. (name or '?') .. ' waits, or not then',
    'the entry is removed'
end

function check.held(entry)
  local name, id = string.match(entry, '^(%S+) (%S+)$')
  local is_right = id and redis.call('ZSCORE', active, id) and is_of(name, id)
  return name, id, not is_right and 'no such job of ' .. (name or '?') .. ' runs',
    'counts no longer'
end

function check.turns(marker)
  local name = string.match(marker, '^%l %d+ (%S+)$')
  local grp = name and group.read(name)
  local is_right = grp and grp.level > 0 and group.marker(grp) == marker
  return name, name, not is_right and 'has a marker that it should not have', 'it is removed'
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
  local at, running = next_due(name), group.running(name)
  local is_idle = not at and running == 0 and grp.set == 0 and grp.paused == 0
    and (not grp.rate or grp.is_shared)
  local says
  if is_idle and grp.rests then
    if tonumber(redis.call('ZSCORE', resting, name)) ~= grp.turn then
      says = 'rests, and nothing says until when'
    end
  elseif is_idle and not trashed then
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

local KEYS_OF = {order = order, held = held, turns = turns}
local key = KEYS_OF[part]
if key then
  fsck.zset(key, function(member, score)
    local name, id, says, fix = check[part](member)
    if not says then
      check_record(name)
    elseif tell(part, id or member, says, fix) then
      redis.call('ZREM', key, member)
      if name then touch(name) end
    end
    if tonumber(score) ~= 0 and redis.call('ZSCORE', key, member)
      and tell('score', member, 'its score in ' .. part .. ' is not 0: ' .. score,
        'becomes 0') then
      redis.call('ZADD', key, 0, member)
    end
  end)
elseif part == 'groups' then
  fsck.hash(groups, check_group)
elseif part == 'resting' then
  fsck.zset(resting, function(name, score)
    local grp = group.parse(redis.call('HGET', groups, name), name)
    if not (grp.rests and grp.turn == tonumber(score))
      and tell('resting', name, 'does not rest until then', 'is removed') then
      redis.call('ZREM', resting, name)
    end
  end)
else
  return redis.error_reply('BADARG fsck_groups part')
end
if repair == 1 and group.turns() then wakeup.push('-') end
return fsck.reply()
