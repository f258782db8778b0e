-- delete: remove every trace of jobs that no worker holds.
-- @key   meta       reads whether someone listens, or waits for others; counts
-- @key   due        removes; adds what is freed
-- @key   jobs       removes
-- @key   run        removes
-- @key   results    removes
-- @key   notes      removes
-- @key   terms      removes
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
-- @rest  id
-- @reply ok, then per job: ok | active | gone
-- @include clock find record retain ended event hint when term depend

local TELL = 100

local reply, done = {'ok'}, {}
for i = rest, #ARGV do
  local id = ARGV[i]
  local word = 'ok'
  if redis.call('ZSCORE', active, id) then
    word = 'active'
  elseif not find.take_due(due, id) and redis.call('ZREM', completed, id) == 0
    and redis.call('ZREM', failed, id) == 0 and redis.call('ZREM', cancelled, id) == 0
    and redis.call('ZREM', blocked, id) == 0 then
    word = 'gone'
  else
    done[#done + 1] = id
  end
  reply[#reply + 1] = word
end
if #done == 0 then return reply end
retain.forget({jobs, run, results, notes, terms}, done)
local now = clock.now(meta)
local limits = retain.limits(meta)
local book = event.open(limits.listened, now)
if book then
  for i = 1, #done do event.add(book, 'deleted', 'delete', done[i], '-', 0, 0, '') end
end
if limits.edges then
  local sets = {meta = meta, due = due, run = run, active = active, completed = completed,
    failed = failed, cancelled = cancelled, terms = terms, expiring = expiring, blocked = blocked,
    edges = edges}
  local with = {now = now, book = book, event = event, record = record, when = when, term = term,
    dropped = {}}
  depend.removed(edges, done)
  for _, id in ipairs(done) do depend.leave(sets, with, id) end
  depend.tell(sets, with, done, TELL)
  ended.tell(waiters, now, with.dropped)
  if with.earliest then hint.due(wake, keep, with.earliest, now) end
  if with.more then hint.push(wake, '-') end
end
if book then event.write(meta, events, book) end
return reply
