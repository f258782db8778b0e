-- What the scripts of this folder share; `scripts.py` puts it before each of them.

-- The server's clock, in whole microseconds.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

-- Microseconds as seconds with fractions: what RQ's registries are scored by, exact to the
-- microsecond.
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

-- Whether a job is delayed on a queue; of its hash: status, origin, enqueued_at, delayed_on,
-- delay_gated.
--
-- RQ's save writes back status, origin and enqueued_at as they were when the job was read, and that
-- may have been at the gate or before it; the fields that begin with "delay" it does not know. RQ's
-- own enqueue sets an enqueued_at of its own, and its cancel the status.
local function is_delayed(fields, name, gate)
  local status, origin, enqueued, on, gated = unpack(fields, 1, 5)
  if on ~= name or (enqueued and enqueued ~= gated) then
    return false
  end
  if origin == gate then
    return status == 'scheduled' or status == 'deferred' or status == 'queued'
  end
  return origin == name and status == 'scheduled'
end

-- The fields that is_delayed judges by.
local function judged(job)
  return redis.call('HMGET', job, 'status', 'origin', 'enqueued_at', 'delayed_on', 'delay_gated')
end
