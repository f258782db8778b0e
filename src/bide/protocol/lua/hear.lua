-- hear: what came of jobs of other queues that jobs of this one wait for.
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
-- @include clock when hint event term record group depend ended

-- Of one that was told already, or that waits for this no more, nothing is changed.
local TELL = 100
for i = rest, #ARGV, 3 do
  if not depend.is_remote(ARGV[i + 1]) or not string.find(ARGV[i + 2], '^[CFX]$') then
    return redis.error_reply('BADARG hear rest')
  end
end
local now = clock.now(meta)
local book = event.book(meta, now)
local sets = {meta = meta, due = due, jobs = jobs, run = run, active = active,
  completed = completed, failed = failed, cancelled = cancelled, terms = terms,
  expiring = expiring, blocked = blocked, edges = edges,
  order = order, held = held, groups = groups, turns = turns}
local with = {now = now, book = book, event = event, record = record, when = when, term = term,
  group = group, touched = {}, dropped = {}}
for i = rest, #ARGV, 3 do
  local child, parent = ARGV[i], ARGV[i + 1]
  redis.call('ZREM', edges, '?' .. child .. ' ' .. parent)
  if redis.call('ZREM', edges, '<' .. child .. ' ' .. parent) == 1
    and redis.call('ZSCORE', blocked, child) then
    depend.resolve(sets, with, child, parent, ARGV[i + 2])
  end
end
if #with.dropped > 0 then depend.tell(sets, with, {unpack(with.dropped)}, TELL) end
depend.turns(sets, with)
ended.tell(waiters, now, with.dropped)
if book then event.write(meta, events, book) end
if with.earliest then hint.due(wake, keep, with.earliest, now) end
if with.more then hint.push(wake, '-') end
return {'ok'}
