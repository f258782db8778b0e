-- Waking sleepers by wake-up messages: the list never holds more than one, and a lost one costs a
-- bounded wait, because the timekeeper's own timer stands behind every deadline.
local wakeup = {}

-- A timekeeper whose deadline has just passed is about to claim, and will find what has come since.
local ABOUT_TO = 5000

-- `from` is the worker that calls for another timekeeper or backup, else '-': a worker that
-- receives its own call twice knows that it is the only one that waits.
function wakeup.push(from)
  if redis.call('LLEN', wake) == 0 then
    redis.call('LPUSH', wake, from)
  end
end

-- A job is due: does anyone need to know?
function wakeup.due(at)
  if at > now and #redis.call('ZRANGEBYSCORE', keep, now - ABOUT_TO, at, 'LIMIT', 0, 1) > 0 then
    return
  end
  wakeup.push('-')
end

return wakeup
