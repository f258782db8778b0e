-- dep_subscribe: jobs of another queue wait for jobs of this one, which is to tell them.
-- @key   meta       reads whether someone listens; marks that there are such; counts
-- @key   due        looks; adds what is freed
-- @key   jobs       looks
-- @key   terms      reads, notes why jobs are cancelled
-- @key   expiring   moves
-- @key   order      adds what is freed
-- @key   held       looks
-- @key   groups     reads and notes groups
-- @key   turns      moves groups' markers
-- @key   blocked    looks; removes what is freed, or cancelled
-- @key   edges      adds what waits, reads what is told already
-- @key   active     looks
-- @key   completed  looks
-- @key   failed     looks
-- @key   cancelled  looks; adds what waits for what has not ended as it should
-- @key   run        keeps the priority of what is cancelled
-- @key   wake       hints when a job is the earliest
-- @key   keep       reads the earliest promise
-- @key   waiters    tells and forgets those who wait for a job's end
-- @key   events     tells listeners
-- @rest  child parent
-- @reply ok, then per pair: - | C | F | X | U | D
-- @reply busy       what jobs of these names have left is being seen to: come again
-- @include clock due_time wakeup event constraints run_record group deps deps_insert notify_waiters

-- `-`: it has not ended; C, F, X: it has completed, failed, was cancelled; U: there is no such job,
-- or it is being placed; D: the queue is a delay queue, and holds data
local parents, known = {}, {}
for i = rest, #ARGV, 2 do
  if not string.find(ARGV[i], '^{[^%s%c{}]+}[^%s%c{}]+$')
    or not string.find(ARGV[i + 1], '^[^%s%c{}]+$') then
    return redis.error_reply('BADARG dep_subscribe rest')
  end
  if not known[ARGV[i + 1]] then parents[#parents + 1] = ARGV[i + 1] end
  known[ARGV[i + 1]] = true
end
local sets = {meta = meta, due = due, jobs = jobs, run = run, active = active,
  completed = completed, failed = failed, cancelled = cancelled, terms = terms,
  expiring = expiring, blocked = blocked, edges = edges,
  order = order, held = held, groups = groups, turns = turns}
if redis.call('HEXISTS', meta, 'edges') == 1 then
  -- What a job of this name left when it was removed is told before another waits for its namesake.
  local now = clock.now(meta)
  local book = event.book(meta, now)
  local ctx = {now = now, book = book, event = event, run_record = run_record,
    due_time = due_time, constraints = constraints, group = group,
    touched = {}, dropped = {}}
  if deps_insert.is_busy(sets, ctx, deps, {}, parents) then
    notify_waiters.tell(waiters, now, ctx.dropped)
    if book then event.write(meta, events, book) end
    if ctx.earliest then wakeup.due(wake, keep, ctx.earliest, now) end
    if ctx.more then wakeup.push(wake, '-') end
    return {'busy'}
  end
end
local is_data = redis.call('HGET', meta, 'kind') == 'data'
local states = deps.known(sets, parents)
local reply, adds = {'ok'}, {}
for i = rest, #ARGV, 2 do
  local child, parent = ARGV[i], ARGV[i + 1]
  local word = states[parent]
  if is_data then
    word = 'D'
  elseif word == 'live' then
    word = '-'
    adds[#adds + 1] = 0
    adds[#adds + 1] = '>' .. parent .. ' ' .. child
  else
    -- Of one that was removed since, the news may not have been delivered yet.
    for _, outcome in ipairs({'C', 'F', 'X'}) do
      if redis.call('ZSCORE', edges, '@' .. child .. ' ' .. parent .. ' ' .. outcome) then
        word = outcome
      end
    end
    word = word or 'U'
  end
  reply[#reply + 1] = word
end
if #adds > 0 then
  redis.call('HSET', meta, 'edges', 1, 'terms', 1)
  redis.call('ZADD', edges, unpack(adds))
end
return reply
