-- Move the jobs that are due to the list that RQ's workers read.
-- KEYS: the sorted set of delayed jobs, the queue's list, RQ's registry of scheduled jobs, RQ's
--       set of queues
-- ARGV: the queue's name, what a job's key begins with, how many jobs at most; the
--       gate's name
-- Reply: ids that were moved; ids whose job is gone; ids of jobs that were cancelled; ids of jobs
--        that others have taken up; when the next is due, in seconds, or ""; now, in seconds
--
-- A job is moved only if it is delayed on this queue still. RQ's own cancel, delete and enqueue
-- know nothing of the sorted set: what they touched is only taken off it.
local delayed, list, scheduled, queues = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local name, prefix, limit, gate = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
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

local now = clock()
local found = redis.call('ZRANGEBYSCORE', delayed, '-inf', seconds(now), 'WITHSCORES', 'LIMIT', 0,
  limit)
local ids, scores = {}, {}
for i = 1, #found, 2 do
  ids[#ids + 1] = found[i]
  scores[#scores + 1] = found[i + 1]
end
local moved, gone, cancelled, taken = {}, {}, {}, {}
local fields = {}
for i, id in ipairs(ids) do
  fields[i] = redis.pcall(
    'HMGET', prefix .. id, 'status', 'origin', 'enqueued_at', 'delayed_on', 'delay_gated',
    'delay_front', 'ttl', 'data'
  )
  -- Of a job whose key holds something else, nothing is left; what may not be read is not gone.
  if fields[i].err and not string.find(fields[i].err, 'WRONGTYPE', 1, true) then
    return redis.error_reply(fields[i].err)
  end
end

-- A write is refused (to a user without the right to it): this job and those behind it stay
-- delayed.
local function stop(from, refused)
  for i = from, #ids do redis.call('ZADD', delayed, scores[i], ids[i]) end
  return redis.error_reply(refused.err)
end

if #ids > 0 then
  redis.call('ZREM', delayed, unpack(ids)) -- first: then a full server lets the rest pass
end
for i, id in ipairs(ids) do
  local job = prefix .. id
  local front, ttl, data = unpack(fields[i], 6, 8)
  if fields[i].err or not data then
    gone[#gone + 1] = id
  elseif fields[i][1] == 'canceled' then
    cancelled[#cancelled + 1] = id
  elseif not is_delayed(fields[i], name, gate) or redis.call('ZSCORE', scheduled, id) then
    taken[#taken + 1] = id
  else
    local pushed = redis.pcall(front == '1' and 'LPUSH' or 'RPUSH', list, id)
    if type(pushed) == 'table' then return stop(i, pushed) end
    local set = redis.pcall('HSET', job, 'status', 'queued', 'origin', name, 'enqueued_at',
      moment(now))
    if type(set) == 'table' then
      redis.call(front == '1' and 'LPOP' or 'RPOP', list)
      return stop(i, set)
    end
    redis.pcall('HDEL', job, 'delay_front', 'delayed_on', 'delay_gated')
    if ttl and tonumber(ttl) then
      redis.pcall('EXPIRE', job, ttl)
      redis.pcall('EXPIRE', job .. ':dependents', ttl)
      redis.pcall('EXPIRE', prefix .. ':' .. id .. ':dependencies', ttl) -- RQ has two colons there
    end
    moved[#moved + 1] = id
  end
end
if #moved > 0 then
  redis.pcall('SADD', queues, list)
end
local head = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
return { moved, gone, cancelled, taken, head[2] or '', seconds(now) }
