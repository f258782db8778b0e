-- fetch: everything that is known of jobs, as one consistent picture.
-- @key   meta       reads the clock's offset under test
-- @key   due        reads
-- @key   jobs       reads
-- @key   run        reads
-- @key   results    reads
-- @key   notes      reads
-- @key   terms      reads
-- @key   order      looks
-- @key   held       looks
-- @key   groups     reads
-- @key   active     reads
-- @key   completed  reads
-- @key   failed     reads
-- @key   cancelled  reads
-- @key   blocked    reads
-- @key   edges      reads what it waits for
-- @key   asked      reads
-- @rest  id
-- @reply ok now, then per job: gone | its parts
-- @reply more now, then the same of the first of them: there is no room for the others in one reply
-- @include clock locate read_budget
-- @later   group deps

-- parts: state since priority body run result notes asked terms turn awaited
-- turn: of a job that waits for its group's: paused limit running before, and when its rate lets
-- one begin
-- awaited: of one that is blocked, how many jobs it waits for, and the ids of the first

local now = clock.now(meta)
local reply = {'ok', now}
local room = read_budget.room()
local sets = {held = held, groups = groups}
for i = rest, #ARGV do
  if room.left < 0 then
    reply[1] = 'more'
    break
  end
  local id = ARGV[i]
  local level, since = locate.due(due, id)
  local state
  if level then
    state = since > now and 'delayed' or 'waiting'
  else
    state, since = locate.elsewhere(active, completed, failed, cancelled, id, blocked)
  end
  if state == 'gone' then
    reply[#reply + 1] = {'gone'}
  else
    local body, result = redis.call('HGET', jobs, id), redis.call('HGET', results, id)
    local said = redis.call('HGET', notes, id)
    read_budget.add(room, body, result, said)
    local line = redis.call('HGET', terms, id)
    local priority = level and level <= 10 and 10 - level or false
    local turn = false
    local name = level == group.GROUPED and group.of(line)
    if name then
      local grp = group.read(sets, name)
      local before = redis.call('ZLEXCOUNT', order, (group.within(name)),
        '(' .. group.entry(name, since, id))
      priority = grp.priority
      turn = string.format('%d %d %d %d %.0f', grp.paused, group.limit(grp),
        group.running(sets, name), before, grp.free)
    end
    reply[#reply + 1] = {state, since, priority, body,
      redis.call('HGET', run, id), result, said,
      state == 'active' and redis.call('ZSCORE', asked, id),
      line, turn, state == 'blocked' and deps.awaited(edges, id)}
  end
end
return reply
