-- Move the jobs that are due to the list that RQ's workers read.
-- KEYS: the sorted set of delayed jobs, the queue's list, RQ's registry of scheduled jobs, RQ's
--       set of queues
-- ARGV: the queue's name; what a job's key and the usual sorted sets begin with; the gate's name;
--       how many members to read at most; the score to begin at, as ZRANGEBYSCORE takes it; how
--       many members to pass over there; for how many microseconds a member may have no job; what
--       all of RQ's keys begin with
-- Reply: ids that were moved; of these, how many delay-rq had delayed; ids whose job is gone; ids
--        of jobs that were cancelled; ids of jobs that others have taken up; ids that stay, and are
--        of no delayed job; ids that stay until the jobs that they depend on have finished; how
--        many stay in all; where the next call continues: score, members to pass over,
--        or "" if everything that is due was read; when the next is due, in seconds, or ""; now, in
--        seconds; how many of those that stay are jobs of other queues, which share the set
--
-- A job is moved only if it is delayed on this queue still: by us, or by delay-rq. RQ's own cancel,
-- delete and enqueue know nothing of the sorted set: what they touched is only taken off it. What
-- was put there neither by us nor by delay-rq stays; a later call passes over it.
--
-- RQ 3 has rate limits: at most so many jobs of a limit's key are on lists or run. The others wait
-- in a sorted set of the key. A worker that finds a free slot pushes the first to its list, and so
-- does this script.
local delayed, list, scheduled, queues = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local name, prefix, delays, gate = unpack(ARGV, 1, 4)
local limit, from, skip, unsaved = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7]), tonumber(ARGV[8])
local rqs = ARGV[9]
for key, wanted in pairs({[list] = 'list', [scheduled] = 'zset'}) do
  local kind = redis.call('TYPE', key).ok
  if kind ~= wanted and kind ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. key .. ' is a ' .. kind .. ', not a ' .. wanted)
  end
end

-- RQ's form of a moment, 2030-01-31T09:00:00.000000Z, in the Gregorian calendar. Years begin in
-- March, so that a leap day is a year's last.
local function moment(us)
  local days = math.floor(us / 86400000000)
  local second = math.floor(us / 1000000) % 86400
  local day = days + 719468 -- since 0000-03-01
  local era = math.floor(day / 146097)
  day = day - era * 146097
  local year = math.floor(
    (day - math.floor(day / 1460) + math.floor(day / 36524) - math.floor(day / 146096)) / 365
  )
  day = day - (365 * year + math.floor(year / 4) - math.floor(year / 100))
  local month = math.floor((5 * day + 2) / 153)
  day = day - math.floor((153 * month + 2) / 5) + 1
  month = month < 10 and month + 3 or month - 9
  year = year + era * 400 + (month <= 2 and 1 or 0)
  return string.format(
    '%04d-%02d-%02dT%02d:%02d:%02d.%06dZ', year, month, day,
    math.floor(second / 3600), math.floor(second / 60) % 60, second % 60, us % 1000000
  )
end

-- Fields of a job; false if its key holds something else: then nothing is left of the job.
local function read(job, ...)
  local fields = redis.pcall('HMGET', job, ...)
  if not fields.err then return fields end
  return not string.find(fields.err, 'WRONGTYPE', 1, true) and fields
end

-- Whether the jobs have finished that a job of delay-rq's depends on: RQ asks when the job is
-- enqueued. One that is not there any more counts as finished.
local function may_run(job)
  local several, one, allows = unpack(
    redis.call('HMGET', job, 'dependency_ids', 'dependency_id', 'allow_dependency_failures')
  )
  local allows_failure = allows and allows ~= '0'
  local ids = several and select(2, pcall(cjson.decode, several)) or one and { one } or {}
  if type(ids) ~= 'table' then return false end
  for _, id in ipairs(ids) do
    local found = read(prefix .. tostring(id), 'status')
    local status = found and found[1]
    if status and status ~= 'finished' and not (allows_failure and status == 'failed') then
      return false
    end
  end
  return true
end

local now = clock()
local found = redis.call('ZRANGEBYSCORE', delayed, from, seconds(now), 'WITHSCORES', 'LIMIT', skip,
  limit)
local moved, gone, cancelled, taken, strange, waiting, others = {}, {}, {}, {}, {}, {}, {}
local theirs, stay = 0, 0
local leaving, ids = {}, {}

-- Of a member that is due: the list in which it is told; none if nothing is to be told of it.
-- Second, whether it stays.
local function judge(id, score, fields)
  local on, placed = unpack(fields or {}, 4, 5)
  local front, ttl, data = unpack(fields or {}, 8, 10)
  if not data then
    -- delay-rq adds the member first, and saves the job after it.
    if now - (tonumber(score) or 0) * 1000000 < unsaved then return nil, true end
    return gone
  elseif fields[1] == 'canceled' then
    return cancelled
  elseif is_delay_rqs(fields, name) then
    if not may_run(prefix .. id) then return waiting, true end
    theirs = theirs + 1
    return moved, false, false, ttl
  elseif is_delayed(fields, name, gate, delayed, delays)
    and not redis.call('ZSCORE', scheduled, id) then
    return moved, false, front == '1', ttl
  elseif on and on ~= name and (placed or delays .. on) == delayed then
    return others, true -- several queues share the sorted set; it is another's
  elseif on or redis.call('HEXISTS', prefix .. id, 'delay_queue') == 1 then
    return taken -- we delayed it
  elseif delayed ~= delays .. name and is_delay_rqs(fields, fields[2]) then
    return others, true -- delay-rq delayed it on another queue, which shares the sorted set
  end
  return strange, true
end

for i = 1, #found, 2 do
  local id, score = found[i], found[i + 1]
  local fields = read(
    prefix .. id, 'status', 'origin', 'enqueued_at', 'delayed_on', 'delayed_in', 'delay_gated',
    'created_at', 'delay_front', 'ttl', 'data', 'rate_limit_key', 'rate_limit_concurrency'
  )
  if fields and fields.err then -- what may not be read is not gone
    return redis.error_reply(fields.err)
  end
  local told, stays, front, ttl = judge(id, score, fields)
  if not stays then
    ids[#ids + 1] = id
    leaving[#ids] = {
      id = id, score = score, told = told, front = front, ttl = ttl,
      slots = fields and fields[11] and tonumber(fields[12] or ''), limited = fields and fields[11]
    }
  else
    stay = stay + 1
    if told then told[#told + 1] = id end
    if score ~= from then
      from, skip = score, 0
    end
    skip = skip + 1
  end
end

-- A write is refused (to a user without the permission to it): this job and those behind it stay
-- delayed.
local function stop(first, refused)
  for i = first, #leaving do redis.call('ZADD', delayed, leaving[i].score, leaving[i].id) end
  return redis.error_reply(refused.err)
end

-- Push a job to its queue's list. Returns the error of a write that is refused, as all of these.
local function push(id, front, list, origin)
  local pushed = redis.pcall(front and 'LPUSH' or 'RPUSH', list, id)
  if type(pushed) == 'table' then return pushed end
  local saved = redis.pcall(
    'HSET', prefix .. id, 'status', 'queued', 'origin', origin, 'enqueued_at', moment(now)
  )
  if type(saved) == 'table' then
    redis.call(front and 'LPOP' or 'RPOP', list)
    return saved
  end
end

-- Have a job wait for a slot of its rate limit, behind those that wait already.
local function hold(one, place)
  local waits = rqs .. ':rl:' .. one.limited .. ':rate_limited'
  local front = one.front and '1' or '0'
  for _, command in ipairs({
    { 'SADD', rqs .. ':rl-keys', one.limited },
    { 'HSET', rqs .. ':rl:' .. one.limited, 'concurrency', one.slots },
    { 'ZADD', waits, seconds(now + place), one.id },
    {
      'HSET', prefix .. one.id, 'status', 'rate_limited', 'origin', name,
      'enqueue_at_front', front
    },
  }) do
    local refused = redis.pcall(unpack(command))
    if type(refused) == 'table' then
      redis.pcall('ZREM', waits, one.id)
      return refused
    end
  end
end

-- Push jobs that wait for a slot of a rate limit, the first ones, while slots are free. The jobs
-- may be of other queues.
local function fill(limited, slots)
  local waits = rqs .. ':rl:' .. limited .. ':rate_limited'
  local allowed = rqs .. ':rl:' .. limited .. ':allowed'
  for _ = 1, limit do
    local used = redis.pcall('ZCARD', allowed)
    local id = redis.call('ZRANGE', waits, 0, 0)[1]
    if type(used) == 'table' or used >= slots or not id then return end
    local fields = read(prefix .. id, 'status', 'origin', 'enqueue_at_front') or {}
    if fields[1] == 'rate_limited' and fields[2] then
      local others = string.sub(list, 1, #list - #name) .. fields[2]
      if push(id, fields[3] == '1', others, fields[2]) then return end
      redis.call('ZADD', allowed, seconds(now), id)
    end
    redis.call('ZREM', waits, id)
  end
end

if #ids > 0 then
  redis.call('ZREM', delayed, unpack(ids)) -- first: then a full server lets the rest pass
end
local limits = {}
for i, one in ipairs(leaving) do
  if one.told == moved then
    local job = prefix .. one.id
    local refused
    if one.slots then
      refused = hold(one, i)
      limits[one.limited] = one.slots
    else
      refused = push(one.id, one.front, list, name)
    end
    if refused then return stop(i, refused) end
    redis.pcall('HDEL', job, 'delay_front', 'delayed_on', 'delayed_in', 'delay_gated')
    if one.ttl and tonumber(one.ttl) then
      redis.pcall('EXPIRE', job, one.ttl)
      redis.pcall('EXPIRE', job .. ':dependents', one.ttl)
      redis.pcall('EXPIRE', prefix .. ':' .. one.id .. ':dependencies', one.ttl) -- RQ's two colons
    end
  end
  one.told[#one.told + 1] = one.id
end
if #moved > 0 then
  redis.pcall('SADD', queues, list)
end
for limited, slots in pairs(limits) do fill(limited, slots) end
if #found < 2 * limit then
  from, skip = '', 0
end
local next = redis.call('ZRANGEBYSCORE', delayed, '(' .. seconds(now), '+inf', 'WITHSCORES',
  'LIMIT', 0, 1)
return {
  moved, theirs, gone, cancelled, taken, strange, waiting, stay, from, skip, next[2] or '',
  seconds(now), #others
}
