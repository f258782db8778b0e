-- delete: remove every trace of jobs that no worker holds.
-- @key   due        removes
-- @key   jobs       removes
-- @key   run        removes
-- @key   results    removes
-- @key   notes      removes
-- @key   active     looks
-- @key   completed  removes
-- @key   failed     removes
-- @key   cancelled  removes
-- @rest  id
-- @reply ok, then per job: ok | active | gone
-- @include find retain

local reply, done = {'ok'}, {}
for i = rest, #ARGV do
  local id = ARGV[i]
  local word = 'ok'
  if redis.call('ZSCORE', active, id) then
    word = 'active'
  elseif not find.take_due(due, id) and redis.call('ZREM', completed, id) == 0
    and redis.call('ZREM', failed, id) == 0 and redis.call('ZREM', cancelled, id) == 0 then
    word = 'gone'
  else
    done[#done + 1] = id
  end
  reply[#reply + 1] = word
end
if #done > 0 then retain.forget({jobs, run, results, notes}, done) end
return reply
