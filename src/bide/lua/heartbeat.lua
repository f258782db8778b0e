-- heartbeat: a worker says that it lives and what it does, or that it stops.
-- @key   workers   adds or removes; removes what was not seen for an hour
-- @key   stopping  looks; forgets a worker that stops, and what was asked an hour ago
-- @arg   worker    text
-- @arg   about     text   what it says of itself, as JSON; empty when it stops
-- @reply ok now stop (1: someone wants it to)

local FORGET_AFTER_US = 3600000000
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('HDEL', workers, worker)
redis.call('ZREMRANGEBYSCORE', stopping, '-inf', now - FORGET_AFTER_US)
local sample = redis.call('HRANDFIELD', workers, 4, 'WITHVALUES')
for i = 1, #sample, 2 do
  if now - tonumber(string.match(sample[i + 1], '^%d+')) > FORGET_AFTER_US then
    redis.call('HDEL', workers, sample[i])
  end
end
if about == '' then
  redis.call('ZREM', stopping, worker)
  return {'ok', now, 0}
end
redis.call('HSET', workers, worker, string.format('%.0f ', now) .. about)
return {'ok', now, redis.call('ZSCORE', stopping, worker) and 1 or 0}
