-- promote: make delayed jobs due now; one that waits already keeps its place.
-- @key   meta       reads the clock's offset under test
-- @key   due        moves the due time
-- @key   active     looks
-- @key   completed  looks
-- @key   failed     looks
-- @key   cancelled  looks
-- @key   wake       hints
-- @key   keep       reads the earliest promise
-- @rest  id
-- @reply ok now, then per job: ok due | active 0 | completed 0 | failed 0 | cancelled 0 | gone 0
-- @include clock find hint

local now = clock.now(meta)
local reply, moved = {'ok', now}, false
for i = rest, #ARGV do
  local id = ARGV[i]
  local level, at = find.due(due, id)
  local word = 'ok'
  if not level then
    word, at = (find.elsewhere(active, completed, failed, cancelled, id)), 0
  elseif at > now then
    redis.call('ZREM', due[level], id)
    redis.call('ZADD', due[level], now, id)
    at, moved = now, true
  end
  reply[#reply + 1] = word
  reply[#reply + 1] = at
end
if moved then hint.due(wake, keep, now, now) end
return reply
