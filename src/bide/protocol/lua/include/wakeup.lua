-- Waking sleepers. A wake-up is a hint: the list never holds more than one, and a lost one costs
-- a bounded wait, because a keeper's own timer stands behind every deadline.
local wakeup = {}

-- Who promised to look a moment ago and has not is about to, and will find what has come since.
local ABOUT_TO = 5000

-- `from` is the worker that calls for another to keep the time with it, else '-': a worker that
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
