-- Timekeepers. At every deadline one worker, the timekeeper, claims, and another, the backup,
-- claims a grace later. All others sleep until they are woken. If the timekeeper dies, the cost is
-- the grace, or if its backup dies too, the horizon. A worker that is alone replaces no other, and
-- claims less often.
local timekeepers = {}

local GRACE, HORIZON, ALONE, LONGEST = 50000, 2000000, 5000000, 10000000

-- The time by which someone must look at the queue again.
function timekeepers.due_by(deadline)
  local is_alone = redis.call('ZCARD', keep) == 0 and redis.call('ZCARD', park) == 0
  local latest = now + (is_alone and ALONE or HORIZON)
  return math.min(deadline or latest, latest)
end

-- Drops deadlines that were missed and sleeps that are over.
function timekeepers.forget()
  redis.call('ZREMRANGEBYSCORE', keep, '-inf', '(' .. string.format('%.0f', now - GRACE))
  redis.call('ZREMRANGEBYSCORE', park, '-inf', now)
end

-- Gives a worker with free slots its part; returns until when it waits.
function timekeepers.arm(worker, due_by)
  local first = redis.call('ZRANGE', keep, 0, 0, 'WITHSCORES')
  local at
  if not first[2] or tonumber(first[2]) > due_by then
    at = due_by
  elseif redis.call('ZCOUNT', keep, '-inf', due_by + GRACE) < 2 then
    at = due_by + GRACE
  else
    -- One after another, so that someone looks every horizon even if all timekeepers are gone.
    local last = redis.call('ZRANGE', park, -1, -1, 'WITHSCORES')
    at = math.min(now + LONGEST, math.max(now, tonumber(last[2] or now)) + HORIZON)
    redis.call('ZADD', park, at, worker)
    return at
  end
  redis.call('ZADD', keep, at, worker)
  return at
end

-- Does the deadline lack a timekeeper or a backup, and is there anyone to call?
function timekeepers.lacks(due_by)
  local near = redis.call('ZCOUNT', keep, '-inf', due_by + GRACE)
  return near < 2 and (redis.call('ZCARD', park) > 0 or redis.call('ZCARD', keep) > near)
end

return timekeepers
