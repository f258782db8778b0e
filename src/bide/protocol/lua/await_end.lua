-- await_end: say that someone waits for a job's end; they are told over the channel `waiters`.
-- @key   meta       reads the clock's offset under test
-- @key   due        looks
-- @key   active     looks
-- @key   completed  looks
-- @key   failed     looks
-- @key   cancelled  looks
-- @key   blocked    looks
-- @key   waiters    adds, and forgets those who wait no more
-- @arg   id         text
-- @arg   until_us   integer  how long from now they wait
-- @reply ok now, then: due | blocked | active | completed | failed | cancelled | gone
-- @include clock locate notify_waiters

local now = clock.now(meta)
local state = locate.due(due, id) and 'due'
  or (locate.elsewhere(active, completed, failed, cancelled, id, blocked))
if state == 'due' or state == 'active' or state == 'blocked' then
  notify_waiters.forget(waiters, now) -- here too, because it may be that nothing ever ends
  redis.call('ZREM', waiters, id) -- because a full server refuses what adds before
  redis.call('ZADD', waiters, now + until_us, id)
end
return {'ok', now, state}
