-- Dependencies of jobs: the end of a parent frees or cancels its children.
local deps = {dropped = {}} -- what was cancelled, because of what it waited for

local OUTCOMES = {{completed, 'C'}, {failed, 'F'}, {cancelled, 'X'}}
local SOME = 100
local looks = 200 -- at children, whether they have ended, in one call
local ENDED, FAILED = '-e', '-f' -- values of run_if; '-' is completed
deps.WAIT_US = 30000000 -- a caller that places a job in steps gives up before
deps.ASK_US = 60000000 -- how long nothing may be heard of another queue's jobs

-- Where each of these jobs is: 'live', or its outcome; nothing for one that there is not.
function deps.states(ids)
  local found = {}
  if #ids == 0 then return found end
  local function look(key, word)
    local scores = redis.call('ZMSCORE', key, unpack(ids))
    for i = 1, #ids do
      if scores[i] then found[ids[i]] = word end
    end
  end
  for _, pair in ipairs(OUTCOMES) do look(pair[1], pair[2]) end
  for i = 1, #due do look(due[i], 'live') end
  look(active, 'live')
  look(blocked, 'live')
  return found
end

-- The same of jobs that are to be waited for. A job that is being placed does not count yet: its
-- `enqueue` has not returned, and two that are placed at once could wait for each other.
function deps.known(ids)
  local found, live, gates = deps.states(ids), {}, {}
  for _, id in ipairs(ids) do
    if found[id] == 'live' then
      live[#live + 1] = id
      gates[#gates + 1] = '<' .. id .. ' ' .. deps_edges.GATE
    end
  end
  if #live == 0 then return found end
  local closed = redis.call('ZMSCORE', edges, unpack(gates))
  for i, id in ipairs(live) do
    if closed[i] and redis.call('ZSCORE', blocked, id) then found[id] = nil end
  end
  return found
end

-- What a parent's end means to a child: 'met', 'run' (whatever else it waits for) or 'cancel'.
function deps.effect(line, outcome)
  local run_if = constraints.value(line, 'd')
  if outcome == 'C' or run_if == ENDED then return 'met' end
  return run_if == FAILED and 'run' or 'cancel'
end

-- The same of one that does not wait any more; a claim continues with what is left.
function deps.leave(id)
  if not deps_edges.forget(id) then redis.call('ZADD', expiring, now, id) end
end

-- Makes a job due that waits for nothing any more. `group.turns` comes afterwards, as in `tell`.
function deps.free(id, line)
  local at = due_time.us(constraints.value(line, 'w') or '+0')
  redis.call('ZREM', blocked, id)
  local level = constraints.level(line)
  local grp = group.touch(line)
  if grp then -- it comes to its group only now
    group.join(grp, line, level)
    group.put(grp, at, id)
  else
    redis.call('ZADD', due[level], at, id)
  end
  local by = constraints.expires(id, line, at)
  if book then event.add('freed', 'free', id, '-', 0, at, '') end
  if grp then at = by and math.max(by, now) end -- its group's turn is known later
  if by and not grp then at = math.max(math.min(at, by), now) end
  if at and (not deps.earliest or at < deps.earliest) then deps.earliest = at end
end

-- Cancels a job that was blocked.
function deps.cancel(id, line, verb)
  finish.cancel(id, constraints.level(line), verb)
  deps.leave(id)
end

-- The same, because of this parent; or of none, where it was to run only if one failed.
local function drop(id, line, parent)
  redis.call('ZREM', blocked, id)
  deps.cancel(id, line, 'drop')
  if parent then redis.call('HSET', terms, id, (line or 'd=-') .. ' c=' .. parent) end
  deps.dropped[#deps.dropped + 1] = id
end

-- Removes a job that never was: who placed it has given up, or must.
function deps.discard(id)
  redis.call('ZREM', blocked, id)
  redis.call('ZREM', expiring, id)
  redis.call('HDEL', jobs, id)
  redis.call('HDEL', terms, id)
  deps.removed({id})
  deps.leave(id)
end

-- Applies to a blocked job what became clear: 'cancel', because of a parent; 'run'; or else that
-- nothing is left that it waits for: it is freed, unless it was to run only if one fails.
function deps.apply(effect, id, line, parent)
  if effect == 'run' then
    deps.free(id, line)
    deps.leave(id)
  elseif effect == 'cancel' or constraints.value(line, 'd') == FAILED then
    drop(id, line, effect == 'cancel' and parent)
  else
    deps.free(id, line)
  end
end

-- When a job with these constraints is due; 0 where it is not.
function deps.due(id, line)
  local level = group.of(line) and group.GROUPED or constraints.level(line)
  return tonumber(redis.call('ZSCORE', due[level], id)) or 0
end

-- A blocked child has this one parent less to wait for.
function deps.resolve(id, parent, outcome)
  if outcome == 'C' and deps_edges.waits(id) then return true end -- as most do, of many
  local line = redis.call('HGET', terms, id)
  local effect = deps.effect(line, outcome)
  if effect ~= 'met' or not deps_edges.waits(id) then deps.apply(effect, id, line, parent) end
  return effect ~= 'cancel'
end

local function ended_as(id)
  for _, pair in ipairs(OUTCOMES) do
    if redis.call('ZSCORE', pair[1], id) then return pair[2] end
  end
end

-- How a job has ended that children wait for; what was removed is as good as cancelled.
local function outcome_of(id)
  local mark = deps_edges.range('!', id, 1)[1]
  return mark and string.sub(mark, -1) or ended_as(id) or 'X', mark
end

-- Tells the children of jobs that have ended, and of those that are cancelled by this, `budget` of
-- them at most; forgets which jobs kept a parent that no longer exists. A claim does what is
-- left over: it is marked. Adds to `deps.dropped` what was cancelled, sets `deps.earliest` to when
-- something that was freed is due, and `deps.more` where more is to be done, here or elsewhere.
function deps.tell(ids, budget)
  local work = {unpack(ids)}
  local at, seen = 1, #deps.dropped
  while at <= #work and budget > 0 do
    local parent = work[at]
    local most = math.min(budget, SOME)
    local found = deps_edges.range('>', parent, most)
    local outcome, mark, exists
    if #found > 0 then
      outcome, mark = outcome_of(parent)
      exists = redis.call('HEXISTS', jobs, parent) == 1
      budget = budget - #found
      local adds, gone = {}, {}
      for i, member in ipairs(found) do
        gone[2 * i - 1] = member
        gone[2 * i] = '<' .. string.sub(member, #parent + 3) .. ' ' .. parent
      end
      redis.call('ZREM', edges, unpack(gone))
      for _, member in ipairs(found) do
        local child = string.sub(member, #parent + 3)
        if deps_edges.is_remote(child) then
          adds[#adds + 1] = 0
          adds[#adds + 1] = '@' .. child .. ' ' .. parent .. ' ' .. outcome
          deps.more = true
        elseif redis.call('ZSCORE', blocked, child)
          and deps.resolve(child, parent, outcome) and exists then
          adds[#adds + 1] = 0
          adds[#adds + 1] = '=' .. parent .. ' ' .. child
        end
      end
      if #adds > 0 then redis.call('ZADD', edges, unpack(adds)) end
      while seen < #deps.dropped do
        seen = seen + 1
        work[#work + 1] = deps.dropped[seen]
      end
    else
      mark = deps_edges.range('!', parent, 1)[1]
      exists = mark and redis.call('HEXISTS', jobs, parent) == 1
    end
    if #found < most then
      local kept = mark and not exists and deps_edges.range('=', parent, SOME) or {}
      if #kept > 0 then redis.call('ZREM', edges, unpack(kept)) end
      budget = budget - #kept
      if #kept < SOME then
        if mark then redis.call('ZREM', edges, mark) end
        at = at + 1
      end
    end
  end
  for i = at, #work do
    if #deps_edges.range('>', work[i], 1) > 0 then
      local outcome, mark = outcome_of(work[i])
      if not mark then redis.call('ZADD', edges, 0, '!' .. work[i] .. ' ' .. outcome) end
      deps.more = true
    end
  end
  local turn = group.turns()
  if turn and (not deps.earliest or turn < deps.earliest) then deps.earliest = turn end
end

-- Whether a job is kept for one that waited for it and has not ended; nil where it is not seen yet.
function deps.is_held(id)
  local found = deps_edges.range('=', id, SOME)
  for _, member in ipairs(found) do
    if looks <= 0 then return nil end
    looks = looks - 1
    local child = string.sub(member, #id + 3)
    if redis.call('HEXISTS', jobs, child) == 1 and not ended_as(child) then return true end
    redis.call('ZREM', edges, member)
  end
  if #found == SOME then return nil end
  return false
end

-- Jobs that are removed with whatever is left of them: their children hear that they are cancelled.
function deps.removed(ids)
  for i = 1, #ids do
    deps_edges.forget(ids[i])
    local kept = deps_edges.range('=', ids[i], SOME)
    if #kept > 0 then redis.call('ZREM', edges, unpack(kept)) end
    if (#kept == SOME or #deps_edges.range('>', ids[i], 1) > 0)
      and #deps_edges.range('!', ids[i], 1) == 0 then
      redis.call('ZADD', edges, 0, '!' .. ids[i] .. ' X')
    end
  end
end

return deps
