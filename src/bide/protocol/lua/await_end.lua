-- await_end: note that a program waits for a job's end, which is then published on `waiters`.
-- @arg   id         text
-- @arg   until_us   integer  how long from now the program waits
-- @reply ok now, then: due | blocked | active | completed | failed | cancelled | gone

local state = locate.due(id) and 'due' or (locate.elsewhere(id))
if state == 'due' or state == 'active' or state == 'blocked' then
  notify_waiters.forget() -- here too, because it may be that nothing ever ends
  redis.call('ZREM', waiters, id) -- because a full server refuses what adds before
  redis.call('ZADD', waiters, now + until_us, id)
end
return {'ok', now, state}
