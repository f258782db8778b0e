-- dep_resolve: apply the ends of parents in other queues to their children in this one.
-- @key   meta       reads whether someone listens; counts
-- @key   due        adds what is freed
-- @key   jobs       looks
-- @key   terms      reads, notes why jobs are cancelled
-- @key   expiring   moves
-- @key   order      adds what is freed
-- @key   held       looks
-- @key   groups     reads and notes groups
-- @key   turns      moves groups' markers
-- @key   blocked    removes what is freed, or cancelled
-- @key   edges      removes what has ended
-- @key   active     looks
-- @key   completed  looks
-- @key   failed     looks
-- @key   cancelled  adds what waits for what has not ended as it should
-- @key   run        keeps the priority of what is cancelled
-- @key   wake       hints when a job is the earliest
-- @key   keep       reads the earliest promise
-- @key   waiters    tells and forgets those who wait for a job's end
-- @key   events     tells listeners
-- @rest  child parent outcome
-- @reply ok
-- @include clock due_time wakeup event constraints run_record group deps notify_waiters

-- Of one that was told already, or that waits for this no more, nothing is changed.
local TELL = 100
for i = rest, #ARGV, 3 do
  if not deps.is_remote(ARGV[i + 1]) or not string.find(ARGV[i + 2], '^[CFX]$') then
    return redis.error_reply('BADARG dep_resolve rest')
  end
end
local now = clock.now(meta)
local book = event.book(meta, now)
local sets = {meta = meta, due = due, jobs = jobs, run = run, active = active,
  completed = completed, failed = failed, cancelled = cancelled, terms = terms,
  expiring = expiring, blocked = blocked, edges = edges,
  order = order, held = held, groups = groups, turns = turns}
local ctx = {now = now, book = book, event = event, run_record = run_record,
  due_time = due_time, constraints = constraints, group = group,
  touched = {}, dropped = {}}
for i = rest, #ARGV, 3 do
  local child, parent = ARGV[i], ARGV[i + 1]
  redis.call('ZREM', edges, '?' .. child .. ' ' .. parent)
  if redis.call('ZREM', edges, '<' .. child .. ' ' .. parent) == 1
    and redis.call('ZSCORE', blocked, child) then
    deps.resolve(sets, ctx, child, parent, ARGV[i + 2])
  end
end
if #ctx.dropped > 0 then deps.tell(sets, ctx, {unpack(ctx.dropped)}, TELL) end
deps.turns(sets, ctx)
notify_waiters.tell(waiters, now, ctx.dropped)
if book then event.write(meta, events, book) end
if ctx.earliest then wakeup.due(wake, keep, ctx.earliest, now) end
if ctx.more then wakeup.push(wake, '-') end
return {'ok'}
