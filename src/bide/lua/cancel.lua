-- cancel: take jobs back before they run.
-- @key   meta       counts
-- @key   due        removes
-- @key   jobs       trims
-- @key   run        trims
-- @key   results    trims
-- @key   errors     trims
-- @key   active     looks
-- @key   completed  looks
-- @key   failed     looks
-- @key   cancelled  adds, trims
-- @arg   count      integer  how many cancelled jobs are kept
-- @arg   age_us     integer  how long
-- @rest  id
-- @reply ok now, then per job: ok | cancelled | active | completed | failed | gone
-- @include clock find retain

local now = clock.now(meta)
local reply, done = {'ok', now}, 0
for i = rest, #ARGV do
  local id = ARGV[i]
  if find.take_due(due, id) then
    redis.call('ZADD', cancelled, now, id)
    done = done + 1
    reply[#reply + 1] = 'ok'
  else
    reply[#reply + 1] = (find.elsewhere(active, completed, failed, cancelled, id))
  end
end
if done > 0 then
  redis.call('HINCRBY', meta, 'cancelled', done)
  retain.trim(cancelled, jobs, run, results, errors, now, count, age_us, done + 64)
end
return reply
