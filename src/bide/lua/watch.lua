-- watch: say that someone waits for a job's end; they are told over the channel `waiters`.
-- @key   meta       reads the clock's offset under test
-- @key   due        looks
-- @key   active     looks
-- @key   completed  looks
-- @key   failed     looks
-- @key   cancelled  looks
-- @key   waiters    adds
-- @arg   id         text
-- @arg   until_us   integer  how long from now they wait
-- @reply ok now, then: due | active | completed | failed | cancelled | gone
-- @include clock find

local now = clock.now(meta)
local state = find.due(due, id) and 'due'
  or (find.elsewhere(active, completed, failed, cancelled, id))
if state == 'due' or state == 'active' then redis.call('ZADD', waiters, now + until_us, id) end
return {'ok', now, state}
