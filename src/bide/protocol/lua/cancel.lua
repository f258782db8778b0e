-- cancel: take jobs back before they run; ask those that run to end.
-- @key   meta       counts, reads the retention
-- @key   due        removes; adds what is freed
-- @key   jobs       trims
-- @key   run        keeps the priority of a job that was never claimed, trims
-- @key   results    trims
-- @key   notes      trims
-- @key   terms      reads whose groups they are, and of what waited for these, trims
-- @key   order      removes; adds what is freed
-- @key   held       looks
-- @key   groups     reads and notes groups
-- @key   turns      moves groups' markers
-- @key   unique     frees the keys of what is trimmed
-- @key   expiring   adds what is freed
-- @key   blocked    removes
-- @key   edges      tells who waits for these
-- @key   active     looks
-- @key   completed  looks
-- @key   failed     looks
-- @key   cancelled  adds, trims
-- @key   asked      adds running jobs, tells their workers
-- @key   waiters    tells and forgets those who wait for a job's end
-- @key   wake       hints when something is freed
-- @key   keep       reads the earliest promise
-- @key   events     tells listeners
-- @arg   running    integer  1 to ask running jobs to end, 0 to leave them alone
-- @rest  id
-- @reply ok now, then per job: ok | asked | cancelled | active | completed | failed | gone
-- @include clock locate run_record retention notify_waiters event wakeup due_time constraints
-- @include group deps dedup_keys

local TELL = 100

local now = clock.now(meta)
local sets = {meta = meta, due = due, jobs = jobs, run = run, active = active,
  completed = completed, failed = failed, cancelled = cancelled, terms = terms,
  expiring = expiring, blocked = blocked, edges = edges,
  order = order, held = held, groups = groups, turns = turns}
local reply, done, touched = {'ok', now}, {}, {}
for i = rest, #ARGV do
  local id = ARGV[i]
  local level, at = locate.take_due(due, id)
  local word
  if level then
    redis.call('ZADD', cancelled, now, id)
    local grp = level == group.GROUPED and group.leave(sets, touched, at, id)
    local priority = grp and grp.priority or level <= 10 and 10 - level or 5
    if priority ~= 5 and redis.call('HEXISTS', run, id) == 0 then
      local rec = run_record.unclaimed(priority, now)
      redis.call('HSET', run, id, run_record.format(rec.head, rec))
    end
    done[#done + 1] = id
    word = 'ok'
  elseif redis.call('ZREM', blocked, id) == 1 then
    redis.call('ZADD', cancelled, now, id)
    redis.call('ZREM', expiring, id)
    level = 10 - tonumber(constraints.value(redis.call('HGET', terms, id), 'p') or 5)
    if level ~= 5 then
      local rec = run_record.unclaimed(10 - level, now)
      redis.call('HSET', run, id, run_record.format(rec.head, rec))
    end
    deps.leave(sets, {now = now}, id)
    done[#done + 1] = id
    word = 'ok'
  else
    word = locate.elsewhere(active, completed, failed, cancelled, id, blocked)
    if word == 'active' and running == 1 then
      redis.call('ZADD', asked, now, id)
      redis.pcall('PUBLISH', asked, id) -- a hint, as in `notify_waiters`
      word = 'asked'
    end
  end
  reply[#reply + 1] = word
end
group.turns(sets, touched, now)
if #done > 0 then
  redis.pcall('HINCRBY', meta, 'cancelled', #done)
  local limits = retention.limits(meta)
  local book = event.open(limits.listened, now)
  if book then
    for i = 1, #done do event.add(book, 'cancelled', 'cancel', done[i], '-', 0, 0, '') end
  end
  local is_kept
  if limits.edges then
    local ctx = {now = now, book = book, event = event, run_record = run_record,
      due_time = due_time, constraints = constraints, group = group,
      touched = {}, dropped = {}, looks = TELL}
    deps.tell(sets, ctx, done, TELL)
    for _, id in ipairs(ctx.dropped) do done[#done + 1] = id end
    if ctx.earliest then wakeup.due(wake, keep, ctx.earliest, now) end
    if ctx.more then wakeup.push(wake, '-') end
    is_kept = function(id) return deps.is_held(sets, ctx, id) end
  end
  retention.trim(meta, cancelled, {jobs, run, results, notes, terms}, now, limits, 3, #done + 64,
    is_kept, limits.terms and function(ids) dedup_keys.free(unique, terms, ids) end)
  notify_waiters.tell(waiters, now, done)
  if book then event.write(meta, events, book) end
end
return reply
