-- Messages to programs that wait for the end of jobs. The channel has the name of the key that
-- lists them. A lost message costs a limited wait, because they also poll. So a caller without the
-- permission for the channel, as new users are, must not abort the script: hence `pcall`.
local notify_waiters = {}

local FORGET = 64

-- Some of those whose time is over.
function notify_waiters.forget()
  local over = redis.call('ZRANGEBYSCORE', waiters, '-inf', now, 'LIMIT', 0, FORGET)
  if #over > 0 then redis.call('ZREM', waiters, unpack(over)) end
end

function notify_waiters.tell(ids)
  if #ids == 0 or redis.call('EXISTS', waiters) == 0 then return end
  notify_waiters.forget()
  for i = 1, #ids do
    if redis.call('ZREM', waiters, ids[i]) == 1 then redis.pcall('PUBLISH', waiters, ids[i]) end
  end
end

return notify_waiters
