-- fetch: everything that is known of jobs, as one consistent picture.
-- @key   meta       reads the clock's offset under test
-- @key   due        reads
-- @key   jobs       reads
-- @key   run        reads
-- @key   results    reads
-- @key   notes      reads
-- @key   terms      reads
-- @key   active     reads
-- @key   completed  reads
-- @key   failed     reads
-- @key   cancelled  reads
-- @key   blocked    reads
-- @key   edges      reads what it waits for
-- @key   asked      reads
-- @rest  id
-- @reply ok now, then per job: state since priority body run result notes asked terms awaited | gone
-- @reply more now, then the same of the first of them: there is no room for the others in one reply
-- @include clock find weigh depend

-- awaited: of one that is blocked, how many jobs it waits for, and the ids of the first

local now = clock.now(meta)
local reply = {'ok', now}
local room = weigh.room()
for i = rest, #ARGV do
  if room.left < 0 then
    reply[1] = 'more'
    break
  end
  local id = ARGV[i]
  local level, since = find.due(due, id)
  local state
  if level then
    state = since > now and 'delayed' or 'waiting'
  else
    state, since = find.elsewhere(active, completed, failed, cancelled, id, blocked)
  end
  if state == 'gone' then
    reply[#reply + 1] = {'gone'}
  else
    local body, result = redis.call('HGET', jobs, id), redis.call('HGET', results, id)
    local said = redis.call('HGET', notes, id)
    weigh.add(room, body, result, said)
    reply[#reply + 1] = {state, since, level and level <= 10 and 10 - level or false, body,
      redis.call('HGET', run, id), result, said, state == 'active' and redis.call('ZSCORE', asked, id),
      redis.call('HGET', terms, id), state == 'blocked' and depend.awaited(edges, id)}
  end
end
return reply
