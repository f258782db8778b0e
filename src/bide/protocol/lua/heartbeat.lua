-- heartbeat: store the report of a live worker, or note that it stops.
-- @arg   worker   text
-- @arg   about    text   what it says of itself, as JSON; empty when it stops
-- @reply ok now stop pause (1: someone wants it to)

local FORGET_AFTER_US = 3600000000
redis.call('HDEL', workers, worker)
local sample = redis.call('HRANDFIELD', workers, 4, 'WITHVALUES')
for i = 1, #sample, 2 do
  if now - tonumber(string.match(sample[i + 1], '^%d+')) > FORGET_AFTER_US then
    redis.call('HDEL', workers, sample[i])
  end
end
local asked, rests = worker .. ' stop', worker .. ' pause' -- no name has a space
if about == '' then
  redis.call('HDEL', workers, asked, rests)
  return {'ok', now, 0, 0}
end
redis.call('HSET', workers, worker, string.format('%.0f ', now) .. about)
local pause = redis.call('HEXISTS', workers, rests)
if pause == 1 then redis.call('HSET', workers, rests, now) end -- otherwise it would be forgotten
return {'ok', now, redis.call('HEXISTS', workers, asked), pause}
