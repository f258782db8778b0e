-- promote: make a delayed job due now; one that waits already keeps its place.
-- @key   meta       reads the clock's offset under test
-- @key   due        moves the due time
-- @key   active     looks
-- @key   completed  looks
-- @key   failed     looks
-- @key   cancelled  looks
-- @key   wake       hints
-- @key   keep       reads the earliest promise
-- @arg   id         text
-- @reply ok now due
-- @reply active | completed | failed | cancelled | gone   now
-- @include clock find hint

local now = clock.now(meta)
local level, at = find.due(due, id)
if not level then
  return {(find.elsewhere(active, completed, failed, cancelled, id)), now}
end
if at > now then
  redis.call('ZREM', due[level], id)
  redis.call('ZADD', due[level], now, id)
  hint.due(wake, keep, now, now)
  at = now
end
return {'ok', now, at}
