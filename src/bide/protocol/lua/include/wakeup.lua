-- Waking sleepers. A wake-up is a hint: the list never holds more than one, and a lost one costs
-- a bounded wait, because a keeper's own timer stands behind every deadline.
local wakeup = {}

-- Who promised to look a moment ago and has not is about to, and will find what has come since.
local ABOUT_TO = 5000

-- `from` is the worker that calls for another to keep the time with it, else '-': a worker that
-- receives its own call twice knows that it is the only one that waits.
function wakeup.push(list, from)
  if redis.call('LLEN', list) == 0 then
    redis.call('LPUSH', list, from)
  end
end

-- A job is due at `due`: does anyone need to know?
function wakeup.due(list, keep, due, now)
  if due > now and #redis.call('ZRANGEBYSCORE', keep, now - ABOUT_TO, due, 'LIMIT', 0, 1) > 0 then
    return
  end
  wakeup.push(list, '-')
end

return wakeup
