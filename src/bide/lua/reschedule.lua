-- reschedule: give a job that has not been taken another due time.
-- @key   meta       reads the clock's offset under test
-- @key   due        moves the due time
-- @key   active     looks
-- @key   completed  looks
-- @key   failed     looks
-- @key   cancelled  looks
-- @key   wake       hints when it is now the earliest
-- @key   keep       reads the earliest promise
-- @arg   id         text
-- @arg   at         text     +N microseconds from now, or =N
-- @reply ok now due
-- @reply active | completed | failed | cancelled | gone   now
-- @include clock find when hint

if not when.valid(at) then return redis.error_reply('BADARG reschedule at') end
local now = clock.now(meta)
local level = find.take_due(due, id)
if not level then
  return {(find.elsewhere(active, completed, failed, cancelled, id)), now}
end
local us = when.us(at, now)
redis.call('ZADD', due[level], us, id)
hint.due(wake, keep, us, now)
return {'ok', now, us}
