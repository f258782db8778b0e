-- What the scripts of this folder share; `queue.py` puts it before each of them.

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

-- Set when a job is due. Its queue's Timers hear of it if they would sleep for longer: if it is due
-- now, or before every other that is still to come. What was due before now says nothing: members
-- that no Timer may move stay there.
local function delay_until(delayed, channel, id, us, now)
  local due = seconds(us)
  redis.call('ZADD', delayed, due, id)
  local next = redis.call('ZRANGEBYSCORE', delayed, '(' .. seconds(now), '+inf', 'LIMIT', 0, 1)[1]
  if us <= now or next == id then
    redis.pcall('PUBLISH', channel, due) -- without the permission, only the message is lost
  end
  return due
end

-- The fields by which the next functions judge.
local function judged(job)
  return redis.call(
    'HMGET', job, 'status', 'origin', 'enqueued_at', 'delayed_on', 'delayed_in', 'delay_gated',
    'created_at'
  )
end

-- Whether this is the status of a job at the gate: it waits for other jobs, or has waited. RQ 3 has
-- a status between the two.
local function at_gate(status)
  return status == 'deferred' or status == 'ready_to_enqueue' or status == 'queued'
end

-- Whether a job is delayed on a queue, by us, in this sorted set; `delays` is what the usual sorted
-- sets begin with.
--
-- RQ's save writes back status, origin and enqueued_at as they were when the job was read, and that
-- may have been at the gate or before it; the fields that begin with "delay" it does not know. RQ's
-- own enqueue sets an enqueued_at of its own, and its cancel the status.
local function is_delayed(fields, name, gate, delayed, delays)
  local status, origin, enqueued, on, placed, gated = unpack(fields, 1, 6)
  if on ~= name or (placed or delays .. on) ~= delayed or (enqueued and enqueued ~= gated) then
    return false
  end
  if origin == gate then
    return status == 'scheduled' or at_gate(status)
  end
  return origin == name and status == 'scheduled'
end

-- Whether a job is delayed on a queue by delay-rq, which saves a job as RQ makes it: queued, and
-- never enqueued. An enqueued_at from before the job was made is of an earlier job of the same id.
local function is_delay_rqs(fields, name)
  local status, origin, enqueued, created = fields[1], fields[2], fields[3], fields[7]
  return status == 'queued' and origin == name
    and (not enqueued or (created and enqueued < created))
end

-- Whether a job is still delayed on a queue, in this sorted set.
local function still_delayed(job, id, name, gate, delayed, delays)
  if not redis.call('ZSCORE', delayed, id) then
    return false
  end
  local fields = judged(job)
  return is_delayed(fields, name, gate, delayed, delays) or is_delay_rqs(fields, name)
end
