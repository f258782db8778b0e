-- delete: remove every trace of jobs that no worker holds.
-- @key   meta       reads whether someone listens, or waits for others; counts
-- @key   due        removes; adds what is freed
-- @key   jobs       removes
-- @key   run        removes
-- @key   results    removes
-- @key   notes      removes
-- @key   terms      reads whose groups they are, and of what waited for these, removes
-- @key   order      removes; adds what is freed
-- @key   held       looks
-- @key   groups     reads and notes groups
-- @key   turns      moves groups' markers
-- @key   unique     frees the keys of what is deleted
-- @key   expiring   removes; adds what is freed
-- @key   blocked    removes
-- @key   edges      tells who waits for these
-- @key   active     looks
-- @key   completed  removes
-- @key   failed     removes
-- @key   cancelled  removes
-- @key   waiters    tells and forgets those who wait for a job's end
-- @key   wake       hints when something is freed
-- @key   keep       reads the earliest promise
-- @key   events     tells listeners
-- @arg   unbegun   integer  1 if jobs that have not ended may go too
-- @rest  id
-- @reply ok, then per job: ok | active | unended | gone
-- @include clock locate run_record retention notify_waiters event wakeup due_time constraints
-- @include group deps dedup_keys

local TELL = 100

local sets = {meta = meta, due = due, jobs = jobs, run = run, active = active,
  completed = completed, failed = failed, cancelled = cancelled, terms = terms,
  expiring = expiring, blocked = blocked, edges = edges,
  order = order, held = held, groups = groups, turns = turns}
local reply, done, touched = {'ok'}, {}, {}
for i = rest, #ARGV do
  local id = ARGV[i]
  local word = 'ok'
  if redis.call('ZSCORE', active, id) then
    word = 'active'
  else
    local level, at
    if unbegun == 1 then level, at = locate.take_due(due, id) end
    if level == group.GROUPED then group.leave(sets, touched, at, id) end
    if level or redis.call('ZREM', completed, id) == 1 or redis.call('ZREM', failed, id) == 1
      or redis.call('ZREM', cancelled, id) == 1
      or (unbegun == 1 and redis.call('ZREM', blocked, id) == 1) then
      done[#done + 1] = id
    else
      word = unbegun == 0 and redis.call('HEXISTS', jobs, id) == 1 and 'unended' or 'gone'
    end
  end
  reply[#reply + 1] = word
end
if #done == 0 then return reply end
local now = clock.now(meta)
if next(touched) then group.turns(sets, touched, now) end
dedup_keys.free(unique, terms, done)
retention.forget(meta, {jobs, run, results, notes, terms}, done)
local limits = retention.limits(meta)
local book = event.open(limits.listened, now)
if book then
  for i = 1, #done do event.add(book, 'deleted', 'delete', done[i], '-', 0, 0, '') end
end
if limits.edges then
  local ctx = {now = now, book = book, event = event, run_record = run_record,
    due_time = due_time, constraints = constraints, group = group,
    touched = {}, dropped = {}}
  deps.removed(edges, done)
  for _, id in ipairs(done) do deps.leave(sets, ctx, id) end
  deps.tell(sets, ctx, done, TELL)
  notify_waiters.tell(waiters, now, ctx.dropped)
  if ctx.earliest then wakeup.due(wake, keep, ctx.earliest, now) end
  if ctx.more then wakeup.push(wake, '-') end
end
if book then event.write(meta, events, book) end
return reply
