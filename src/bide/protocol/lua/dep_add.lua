-- dep_add: say what else a job waits for, of many; or what came of its parents in other queues.
-- @key   meta       reads whether someone listens; marks
-- @key   due        looks; adds what is freed
-- @key   jobs       removes one whose parent there is not
-- @key   terms      reads; removes one whose parent there is not
-- @key   expiring   moves when it is to be looked at
-- @key   order      adds what is freed
-- @key   held       looks
-- @key   groups     reads and notes groups
-- @key   turns      moves groups' markers
-- @key   blocked    removes what is freed, or cancelled
-- @key   edges      adds what it waits for, removes what has ended
-- @key   active     looks
-- @key   completed  looks
-- @key   failed     looks
-- @key   cancelled  looks; adds what waits for what has not ended as it should
-- @key   run        keeps the priority of what is cancelled
-- @key   wake       hints when a job is the earliest
-- @key   keep       reads the earliest promise
-- @key   waiters    tells and forgets those who wait for a job's end
-- @key   events     tells listeners
-- @arg   child      text
-- @arg   is_last    integer  1 where this is all that it waits for
-- @rest  parent outcome
-- @reply ok due     due: when it is due, or 0
-- @reply ended      it is not blocked (any more)
-- @reply gone       there is no such job
-- @reply unknown    the id of a parent that there is not (yet); the job is removed, whole
-- @reply busy       what jobs of these names have left is being seen to: come again
-- @include clock due_time wakeup event constraints run_record group deps deps_insert notify_waiters

-- outcome: - of one that may not have ended: of this queue, that is looked up; of another queue's
-- that has: C | F | X, as `edges` has it, or U for one that there is not
local parents, known, words, unknown = {}, {}, {}, nil
for i = rest, #ARGV, 2 do
  local parent, outcome = ARGV[i], ARGV[i + 1]
  if not deps_insert.is_valid(parent) or not string.find(parent, '%S')
    or not string.find(outcome, '^[-CFXU]$')
    or (outcome ~= '-' and not deps.is_remote(parent)) then
    return redis.error_reply('BADARG dep_add rest')
  end
  deps_insert.add_local(deps, parent, parents, known)
  if outcome == '-' then words[#words + 1] = parent end
  if outcome == 'U' then unknown = parent end
end

local now = clock.now(meta)
if not redis.call('ZSCORE', blocked, child) then
  return {redis.call('HEXISTS', jobs, child) == 1 and 'ended' or 'gone'}
end
if deps.is_open(edges, child) then return {'ok', 0} end -- a repeat
local book = event.book(meta, now)
local sets = {meta = meta, due = due, jobs = jobs, run = run, active = active,
  completed = completed, failed = failed, cancelled = cancelled, terms = terms,
  expiring = expiring, blocked = blocked, edges = edges,
  order = order, held = held, groups = groups, turns = turns}
local ctx = {now = now, book = book, event = event, run_record = run_record,
  due_time = due_time, constraints = constraints, group = group,
  touched = {}, dropped = {}}
local states = deps.known(sets, parents)
for _, parent in ipairs(parents) do
  if not states[parent] then unknown = unknown or parent end
end

local function finish(reply)
  deps.turns(sets, ctx)
  notify_waiters.tell(waiters, now, ctx.dropped)
  if book then event.write(meta, events, book) end
  if ctx.earliest then wakeup.due(wake, keep, ctx.earliest, now) end
  return reply
end

if unknown then
  redis.call('ZREM', blocked, child)
  redis.call('ZREM', expiring, child)
  redis.call('HDEL', jobs, child)
  redis.call('HDEL', terms, child)
  deps.removed(edges, {child})
  deps.leave(sets, ctx, child)
  wakeup.push(wake, '-')
  return {'unknown', unknown}
end
if deps_insert.is_busy(sets, ctx, deps, {child}, parents) then return finish({'busy'}) end

local line = redis.call('HGET', terms, child)
local word, cause = deps_insert.note(sets, ctx, deps, child, line, table.concat(words, ' '), states)
for i = rest, #ARGV, 2 do
  local parent, outcome = ARGV[i], ARGV[i + 1]
  if outcome ~= '-' and word ~= 'run' and word ~= 'cancel' then
    redis.call('ZREM', edges, '<' .. child .. ' ' .. parent)
    local effect = deps.effect(constraints, line, outcome)
    if effect ~= 'met' then word, cause = effect, parent end
  end
end
if is_last == 1 then redis.call('ZREM', edges, '<' .. child .. ' ' .. deps.GATE) end
if word == 'cancel' then
  deps.drop(sets, ctx, child, line, cause)
elseif word == 'run' then
  deps.free(sets, ctx, child, line)
  deps.leave(sets, ctx, child)
elseif is_last == 1 and not deps.waits(edges, child) then
  deps.all_met(sets, ctx, child, line)
else
  local rest_of = redis.call('ZLEXCOUNT', edges, '[<' .. child .. ' {', '(<' .. child .. ' |')
  local at = deps_insert.look_at(deps, constraints, line, edges, child,
    rest_of > 0 and '{' or '', now)
  redis.call('ZREM', expiring, child)
  if at then
    redis.call('ZADD', expiring, at, child)
    ctx.earliest = ctx.earliest and math.min(ctx.earliest, at) or at
  end
end
if #ctx.dropped > 0 then
  deps.tell(sets, ctx, {unpack(ctx.dropped)}, 100)
  if ctx.more then wakeup.push(wake, '-') end
end
return finish({'ok', deps.due(sets, ctx, child, line)})
