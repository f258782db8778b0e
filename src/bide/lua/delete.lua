-- delete: remove every trace of jobs that no worker holds.
-- @key   due        removes
-- @key   jobs       removes
-- @key   run        removes
-- @key   results    removes
-- @key   errors     removes
-- @key   active     looks
-- @key   completed  removes
-- @key   failed     removes
-- @key   cancelled  removes
-- @rest  id
-- @reply ok, then per job: ok | active | gone
-- @include find

local reply = {'ok'}
for i = rest, #ARGV do
  local id = ARGV[i]
  local word = 'ok'
  if redis.call('ZSCORE', active, id) then
    word = 'active'
  elseif not find.take_due(due, id) and redis.call('ZREM', completed, id) == 0
    and redis.call('ZREM', failed, id) == 0 and redis.call('ZREM', cancelled, id) == 0 then
    word = 'gone'
  end
  if word == 'ok' then
    redis.call('HDEL', jobs, id)
    redis.call('HDEL', run, id)
    redis.call('HDEL', results, id)
    redis.call('HDEL', errors, id)
  end
  reply[#reply + 1] = word
end
return reply
