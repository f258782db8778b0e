-- dep_add: add parents to a job that has many, or outcomes of its parents in other queues.
-- @arg   child      text
-- @arg   is_last    integer  1 if these are the last parents
-- @rest  parent outcome
-- @last  wanted   the durabilities that the caller waits for: replica | fsync | replica,fsync
-- @reply ok due     due: when it is due, or 0
-- @reply ended      it is not blocked (any more)
-- @reply gone       there is no such job
-- @reply unknown    the id of a missing parent; the job is removed
-- @reply busy       the data of earlier jobs with these ids is being removed: call again

-- outcome: - of one that may not have ended: of this queue, that is looked up; of another queue's
-- that has: C | F | X, as `edges` has it, or U for one that there is not
local parents, known, words, unknown = {}, {}, {}, nil
for i = rest, #ARGV, 2 do
  local parent, outcome = ARGV[i], ARGV[i + 1]
  if not deps_insert.is_valid(parent) or not string.find(parent, '%S')
    or not string.find(outcome, '^[-CFXU]$')
    or (outcome ~= '-' and not deps_edges.is_remote(parent)) then
    return redis.error_reply('BADARG dep_add rest')
  end
  deps_insert.add_local(parent, parents, known)
  if outcome == '-' then words[#words + 1] = parent end
  if outcome == 'U' then unknown = parent end
end
if not durability.valid(wanted) then return redis.error_reply('BADARG dep_add wanted') end

local is_blocked = redis.call('ZSCORE', blocked, child)
if not is_blocked or deps_edges.is_open(child) then
  -- A repeat writes, too: WAIT counts what its own connection has written.
  if wanted ~= '' then redis.call('HSET', meta, 'repeated', now) end
  if is_blocked then return {'ok', 0} end
  return {redis.call('HEXISTS', jobs, child) == 1 and 'ended' or 'gone'}
end
event.open()
local states = deps.known(parents)
for _, parent in ipairs(parents) do
  if not states[parent] then unknown = unknown or parent end
end

if unknown then
  deps.discard(child)
  wakeup.push('-')
  return {'unknown', unknown}
end
if deps_insert.is_busy({child}, parents) then
  finish.close()
  return {'busy'}
end

local line = redis.call('HGET', terms, child)
local word, cause = deps_insert.note(child, line, table.concat(words, ' '), states)
for i = rest, #ARGV, 2 do
  local parent, outcome = ARGV[i], ARGV[i + 1]
  if outcome ~= '-' and word ~= 'run' and word ~= 'cancel' then
    redis.call('ZREM', edges, '<' .. child .. ' ' .. parent)
    local effect = deps.effect(line, outcome)
    if effect ~= 'met' then word, cause = effect, parent end
  end
end
if is_last == 1 then redis.call('ZREM', edges, '<' .. child .. ' ' .. deps_edges.GATE) end
if word == 'cancel' or word == 'run' or (is_last == 1 and not deps_edges.waits(child)) then
  deps.apply(word, child, line, cause)
else
  local others = redis.call('ZLEXCOUNT', edges, deps_edges.remote(child))
  local at = deps_insert.look_at(line, child, others > 0 and '{' or '')
  redis.call('ZREM', expiring, child)
  if at then
    redis.call('ZADD', expiring, at, child)
    deps.earliest = deps.earliest and math.min(deps.earliest, at) or at
  end
end
deps.tell({unpack(deps.dropped)}, 100)
finish.close()
return {'ok', deps.due(child, line)}
