-- fetch: read all data of jobs, in one consistent snapshot.
-- @rest  id
-- @reply ok now, then per job: gone | its parts
-- @reply more now, then the first of them, because one reply has no room for all
-- @include locate read_budget

-- parts: state since priority body run result notes asked terms turn awaited
-- turn: of a job that waits for its group's: paused limit running before, and when its rate lets
-- one begin
-- awaited: of one that is blocked, how many jobs it waits for, and the ids of the first

local reply = {'ok', now}
local room = read_budget.room()
for i = rest, #ARGV do
  if room.left < 0 then
    reply[1] = 'more'
    break
  end
  local id = ARGV[i]
  local state, since, level = locate.state(id)
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
      local grp = group.read(name)
      local before = redis.call('ZLEXCOUNT', order, (group.within(name)),
        '(' .. group.entry(name, since, id))
      priority = grp.priority
      turn = string.format('%d %d %d %d %.0f', grp.paused, group.limit(grp),
        group.running(name), before, grp.free)
    end
    reply[#reply + 1] = {state, since, priority, body,
      redis.call('HGET', run, id), result, said,
      state == 'active' and redis.call('ZSCORE', asked, id),
      line, turn, state == 'blocked' and deps_edges.awaited(id)}
  end
end
return reply
