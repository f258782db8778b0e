-- What the scripts of this folder share; `scripts.py` puts it before each of them.

-- The server's clock, in whole microseconds.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Microseconds as seconds with fractions: what RQ's registries are scored by, exact to the microsecond.
local function seconds(us)
  return string.format('%d.%06d', math.floor(us / 1000000), us % 1000000)
end

-- Set when a job is due. If nothing is due before it, its Timers hear of it: they sleep until then.
local function delay_until(delayed, channel, id, due)
  redis.call('ZADD', delayed, due, id)
  if redis.call('ZRANGE', delayed, 0, 0)[1] == id then
    redis.pcall('PUBLISH', channel, due) -- a user without the right to it only loses the hint
  end
end
