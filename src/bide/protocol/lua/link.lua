-- link: say what else a job waits for, of many; or what came of its parents in other queues.
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
-- @include clock when hint event term record group depend placing ended

-- outcome: - of one that may not have ended: of this queue, that is looked up; of another queue's
-- that has: C | F | X, as `edges` has it, or U for one that there is not
local parents, known, words, unknown = {}, {}, {}, nil
for i = rest, #ARGV, 2 do
  local parent, outcome = ARGV[i], ARGV[i + 1]
  if not placing.is_valid(parent) or not string.find(parent, '%S')
    or not string.find(outcome, '^[-CFXU]$')
    or (outcome ~= '-' and not depend.is_remote(parent)) then
    return redis.error_reply('BADARG link rest')
  end
  placing.add_local(depend, parent, parents, known)
  if outcome == '-' then words[#words + 1] = parent end
  if outcome == 'U' then unknown = parent end
end

local now = clock.now(meta)
if not redis.call('ZSCORE', blocked, child) then
  return {redis.call('HEXISTS', jobs, child) == 1 and 'ended' or 'gone'}
end
if depend.is_open(edges, child) then return {'ok', 0} end -- a repeat
local book = event.book(meta, now)
local sets = {meta = meta, due = due, jobs = jobs, run = run, active = active,
  completed = completed, failed = failed, cancelled = cancelled, terms = terms,
  expiring = expiring, blocked = blocked, edges = edges,
  order = order, held = held, groups = groups, turns = turns}
local with = {now = now, book = book, event = event, record = record, when = when, term = term,
  group = group, touched = {}, dropped = {}}
local states = depend.known(sets, parents)
for _, parent in ipairs(parents) do
  if not states[parent] then unknown = unknown or parent end
end

local function finish(reply)
  depend.turns(sets, with)
  ended.tell(waiters, now, with.dropped)
  if book then event.write(meta, events, book) end
  if with.earliest then hint.due(wake, keep, with.earliest, now) end
  return reply
end

if unknown then
  redis.call('ZREM', blocked, child)
  redis.call('ZREM', expiring, child)
  redis.call('HDEL', jobs, child)
  redis.call('HDEL', terms, child)
  depend.removed(edges, {child})
  depend.leave(sets, with, child)
  hint.push(wake, '-')
  return {'unknown', unknown}
end
if placing.is_busy(sets, with, depend, {child}, parents) then return finish({'busy'}) end

local line = redis.call('HGET', terms, child)
local word, cause = placing.note(sets, with, depend, child, line, table.concat(words, ' '), states)
for i = rest, #ARGV, 2 do
  local parent, outcome = ARGV[i], ARGV[i + 1]
  if outcome ~= '-' and word ~= 'run' and word ~= 'cancel' then
    redis.call('ZREM', edges, '<' .. child .. ' ' .. parent)
    local effect = depend.effect(term, line, outcome)
    if effect ~= 'met' then word, cause = effect, parent end
  end
end
if is_last == 1 then redis.call('ZREM', edges, '<' .. child .. ' ' .. depend.GATE) end
if word == 'cancel' then
  depend.drop(sets, with, child, line, cause)
elseif word == 'run' then
  depend.free(sets, with, child, line)
  depend.leave(sets, with, child)
elseif is_last == 1 and not depend.waits(edges, child) then
  depend.all_met(sets, with, child, line)
else
  local rest_of = redis.call('ZLEXCOUNT', edges, '[<' .. child .. ' {', '(<' .. child .. ' |')
  local at = placing.look_at(depend, term, line, edges, child, rest_of > 0 and '{' or '', now)
  redis.call('ZREM', expiring, child)
  if at then
    redis.call('ZADD', expiring, at, child)
    with.earliest = with.earliest and math.min(with.earliest, at) or at
  end
end
if #with.dropped > 0 then
  depend.tell(sets, with, {unpack(with.dropped)}, 100)
  if with.more then hint.push(wake, '-') end
end
return finish({'ok', depend.due(sets, with, child, line)})
