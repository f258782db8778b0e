-- cancel: take jobs back before they run; ask those that run to end.
-- @key   meta       counts, reads the retention
-- @key   due        removes
-- @key   jobs       trims
-- @key   run        keeps the priority of a job that was never claimed, trims
-- @key   results    trims
-- @key   notes      trims
-- @key   terms      reads whose groups they are, trims
-- @key   order      removes
-- @key   held       looks
-- @key   groups     reads and notes groups
-- @key   turns      moves groups' markers
-- @key   active     looks
-- @key   completed  looks
-- @key   failed     looks
-- @key   cancelled  adds, trims
-- @key   asked      adds running jobs, tells their workers
-- @key   waiters    tells and forgets those who wait for a job's end
-- @key   events     tells listeners
-- @arg   running    integer  1 to ask running jobs to end, 0 to leave them alone
-- @rest  id
-- @reply ok now, then per job: ok | asked | cancelled | active | completed | failed | gone
-- @include clock find record retain ended event group

local now = clock.now(meta)
local sets = {due = due, terms = terms, order = order, held = held, groups = groups, turns = turns}
local reply, done, touched = {'ok', now}, {}, {}
for i = rest, #ARGV do
  local id = ARGV[i]
  local level, at = find.take_due(due, id)
  local word
  if level then
    redis.call('ZADD', cancelled, now, id)
    local of = level == group.GROUPED and group.leave(sets, touched, at, id)
    local priority = of and of.priority or level <= 10 and 10 - level or 5
    if priority ~= 5 and redis.call('HEXISTS', run, id) == 0 then
      local f = record.unclaimed(priority, now)
      redis.call('HSET', run, id, record.format(f.head, f))
    end
    done[#done + 1] = id
    word = 'ok'
  else
    word = find.elsewhere(active, completed, failed, cancelled, id)
    if word == 'active' and running == 1 then
      redis.call('ZADD', asked, now, id)
      redis.pcall('PUBLISH', asked, id) -- a hint, as in `ended`
      word = 'asked'
    end
  end
  reply[#reply + 1] = word
end
group.turns(sets, touched, now)
if #done > 0 then
  redis.pcall('HINCRBY', meta, 'cancelled', #done)
  local limits = retain.limits(meta)
  retain.trim(cancelled, {jobs, run, results, notes, terms}, now, limits, 3, #done + 64)
  ended.tell(waiters, now, done)
  local book = event.open(limits.listened, now)
  if book then
    for i = 1, #done do event.add(book, 'cancelled', 'cancel', done[i], '-', 0, 0, '') end
    event.write(meta, events, book)
  end
end
return reply
