-- Wake-up messages for sleeping workers: the list never has more than one, and a lost one costs a
-- limited wait, because the timekeeper has a timer for every deadline.
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
