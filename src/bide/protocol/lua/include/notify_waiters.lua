-- Telling those who wait for the end of jobs. The channel has the name of the key in which they
-- are noted; a message that is lost costs a bounded wait, because they also look by themselves. So
-- it must not cost a script its end where the caller has no right to the channel, which is what
-- servers give a new user: hence `pcall`.
local notify_waiters = {}

local FORGET = 64

-- Some of those whose time is over.
function notify_waiters.forget(waiters, now)
  local over = redis.call('ZRANGEBYSCORE', waiters, '-inf', now, 'LIMIT', 0, FORGET)
  if #over > 0 then redis.call('ZREM', waiters, unpack(over)) end
end

function notify_waiters.tell(waiters, now, ids)
  if #ids == 0 or redis.call('EXISTS', waiters) == 0 then return end
  notify_waiters.forget(waiters, now)
  for i = 1, #ids do
    if redis.call('ZREM', waiters, ids[i]) == 1 then redis.pcall('PUBLISH', waiters, ids[i]) end
  end
end

return notify_waiters
