-- Jobs that wait for others. `edges` holds what waits for what; each member has the score 0 and one
-- of these forms, so that all that concerns one job is a range of it:
--
--   >parent child       the child waits for this job's end
--   <child parent       the same, from the child's side
--   <child {}           not all that the child waits for is known yet: it is being placed
--   !parent outcome     the parent has ended, and not all of its children have been told; or it was
--                       removed, and not all that is here of it is gone
--   =parent child       the parent has ended, and is kept while the child has not
--   @child parent outcome    of a child of another queue: to be told there
--   ?child parent            of a parent of another queue: to be asked there
--
-- A job of another queue is `{queue}id`. outcome: C for completed, F for failed, X for cancelled,
-- which a job that was removed is, too.
--
-- A child is freed when no `<` of it is left. What is here of a job that is not blocked (any more)
-- means nothing, and goes with its parents' ends.
local deps = {}

local OUTCOMES = {{'completed', 'C'}, {'failed', 'F'}, {'cancelled', 'X'}}
local SOME, MOST_SHOWN = 100, 20
local ENDED, FAILED = '-e', '-f' -- values of run_if; '-' is completed
deps.GATE = '{}'
deps.GATE_US = 30000000 -- a caller that places a job in steps gives up before
deps.ASK_US = 60000000 -- how long nothing may be heard of another queue's jobs

-- Up to `count` members that begin so.
local function range(edges, mark, id, count)
  local begin = mark .. id .. ' '
  return redis.call('ZRANGEBYLEX', edges, '[' .. begin, '(' .. mark .. id .. '!', 'LIMIT', 0, count)
end

function deps.is_marked(edges, id) return #range(edges, '!', id, 1) > 0 end

function deps.is_remote(id) return string.byte(id) == 123 end

-- Does the job wait for anything yet?
function deps.waits(edges, id) return #range(edges, '<', id, 1) > 0 end

-- How many jobs it waits for, and the ids of the first.
function deps.awaited(edges, id)
  local found = range(edges, '<', id, MOST_SHOWN)
  local reply = {redis.call('ZLEXCOUNT', edges, '[<' .. id .. ' ', '(<' .. id .. '!')}
  for i = 1, #found do reply[i + 1] = string.sub(found[i], #id + 3) end
  return reply
end

function deps.is_open(edges, id)
  return not redis.call('ZSCORE', edges, '<' .. id .. ' ' .. deps.GATE)
end

-- Where each of these jobs is: 'live', or its outcome; nothing for one that there is not.
function deps.states(sets, ids)
  local found = {}
  if #ids == 0 then return found end
  local function look(key, word)
    local scores = redis.call('ZMSCORE', key, unpack(ids))
    for i = 1, #ids do
      if scores[i] then found[ids[i]] = word end
    end
  end
  for _, pair in ipairs(OUTCOMES) do look(sets[pair[1]], pair[2]) end
  for i = 1, #sets.due do look(sets.due[i], 'live') end
  look(sets.active, 'live')
  look(sets.blocked, 'live')
  return found
end

-- The same of jobs that are to be waited for. A job that is being placed does not count yet: its
-- `enqueue` has not returned, and two that are placed at once could wait for each other.
function deps.known(sets, ids)
  local found, live, gates = deps.states(sets, ids), {}, {}
  for _, id in ipairs(ids) do
    if found[id] == 'live' then
      live[#live + 1] = id
      gates[#gates + 1] = '<' .. id .. ' ' .. deps.GATE
    end
  end
  if #live == 0 then return found end
  local closed = redis.call('ZMSCORE', sets.edges, unpack(gates))
  for i, id in ipairs(live) do
    if closed[i] and redis.call('ZSCORE', sets.blocked, id) then found[id] = nil end
  end
  return found
end

-- What a parent's end means to a child with these terms: 'met', 'run' (whatever else it waits for)
-- or 'cancel'.
function deps.effect(constraints, line, outcome)
  local run_if = constraints.value(line, 'd')
  if outcome == 'C' or run_if == ENDED then return 'met' end
  return run_if == FAILED and 'run' or 'cancel'
end

-- Forgets what a job waits for, or the first of it; true if nothing is left.
function deps.forget(edges, id)
  local first = '[<' .. id .. ' {' -- those of other queues, of which none may ever be told
  local found = redis.call('ZRANGEBYLEX', edges, first, '(<' .. id .. ' |', 'LIMIT', 0, SOME)
  if #found < SOME then
    for _, member in ipairs(range(edges, '<', id, SOME - #found)) do found[#found + 1] = member end
  end
  if #found == 0 then return true end
  local members = found
  for i = 1, #found do
    local parent = string.sub(found[i], #id + 3)
    members[#members + 1] = '>' .. parent .. ' ' .. id
    members[#members + 1] = '?' .. id .. ' ' .. parent
  end
  redis.call('ZREM', edges, unpack(members))
  return #range(edges, '<', id, 1) == 0
end

-- The same of one that does not wait any more; a claim goes on with what is left.
function deps.leave(sets, ctx, id)
  if not deps.forget(sets.edges, id) then redis.call('ZADD', sets.expiring, ctx.now, id) end
end

-- Makes a job due that waits for nothing any more. `ctx`: what the script includes, now, book, and
-- the groups that are touched: the caller calls `turns` afterwards, as `tell` does.
function deps.free(sets, ctx, id, line)
  local at = ctx.due_time.us(ctx.constraints.value(line, 'w') or '+0', ctx.now)
  redis.call('ZREM', sets.blocked, id)
  local level = 10 - tonumber(ctx.constraints.value(line, 'p') or 5)
  local grp = ctx.group.touch(sets, ctx.touched, line)
  if grp then -- it comes to its group only now
    ctx.group.join(grp, line, level)
    ctx.group.put(sets, grp, at, id)
  else
    redis.call('ZADD', sets.due[level], at, id)
  end
  local by = ctx.constraints.begins_by(line, at)
  if by then
    redis.call('ZADD', sets.expiring, by, id)
  else
    redis.call('ZREM', sets.expiring, id)
  end
  if ctx.book then ctx.event.add(ctx.book, 'freed', 'free', id, '-', 0, at, '') end
  if grp then at = by and math.max(by, ctx.now) end -- its group's turn is known later: `turns`
  if by and not grp then at = math.max(math.min(at, by), ctx.now) end
  if at and (not ctx.earliest or at < ctx.earliest) then ctx.earliest = at end
end

-- Puts the markers of groups to which jobs have been freed where they belong.
function deps.turns(sets, ctx)
  local turn = ctx.group.turns(sets, ctx.touched, ctx.now)
  if turn and (not ctx.earliest or turn < ctx.earliest) then ctx.earliest = turn end
  ctx.touched = {}
end

-- Cancels a job, because of this parent; or of none, where it was to run only if one failed.
function deps.drop(sets, ctx, id, line, parent)
  redis.call('ZREM', sets.blocked, id)
  redis.call('ZREM', sets.expiring, id)
  redis.call('ZADD', sets.cancelled, ctx.now, id)
  local level = tonumber(ctx.constraints.value(line, 'p') or 5)
  if level ~= 5 and redis.call('HEXISTS', sets.run, id) == 0 then
    local rec = ctx.run_record.unclaimed(level, ctx.now)
    redis.call('HSET', sets.run, id, ctx.run_record.format(rec.head, rec))
  end
  if parent then redis.call('HSET', sets.terms, id, (line or 'd=-') .. ' c=' .. parent) end
  redis.pcall('HINCRBY', sets.meta, 'cancelled', 1)
  if ctx.book then ctx.event.add(ctx.book, 'cancelled', 'drop', id, '-', 0, 0, '') end
  deps.leave(sets, ctx, id)
  ctx.dropped[#ctx.dropped + 1] = id
end

-- Nothing is left that a blocked job waits for: it is freed, unless it was to run only if one
-- fails.
function deps.all_met(sets, ctx, id, line)
  if ctx.constraints.value(line, 'd') == FAILED then
    deps.drop(sets, ctx, id, line)
  else
    deps.free(sets, ctx, id, line)
  end
end

-- When a job with these terms is due; 0 where it is not.
function deps.due(sets, ctx, id, line)
  local level = 10 - tonumber(ctx.constraints.value(line, 'p') or 5)
  if ctx.group.of(line) then level = ctx.group.GROUPED end
  return tonumber(redis.call('ZSCORE', sets.due[level], id)) or 0
end

-- A blocked child has this one parent less to wait for.
function deps.resolve(sets, ctx, id, parent, outcome)
  if outcome == 'C' and deps.waits(sets.edges, id) then return true end -- as most do, of many
  local line = redis.call('HGET', sets.terms, id)
  local effect = deps.effect(ctx.constraints, line, outcome)
  if effect == 'cancel' then
    deps.drop(sets, ctx, id, line, parent)
  elseif effect == 'run' then
    deps.free(sets, ctx, id, line)
    deps.leave(sets, ctx, id)
  elseif not deps.waits(sets.edges, id) then
    deps.all_met(sets, ctx, id, line)
  end
  return effect ~= 'cancel'
end

-- How a job has ended that children wait for; what was removed is as good as cancelled.
local function outcome_of(sets, id)
  local mark = range(sets.edges, '!', id, 1)[1]
  if mark then return string.sub(mark, -1), mark end
  for _, pair in ipairs(OUTCOMES) do
    if redis.call('ZSCORE', sets[pair[1]], id) then return pair[2] end
  end
  return 'X'
end

-- Tells the children of jobs that have ended, `budget` of them at most, and the children of those
-- that are cancelled by this; forgets which jobs kept a parent that no longer exists. What is left
-- over is marked, for claims to go on with. Adds to `ctx.dropped` what was cancelled, sets
-- `ctx.earliest` to when something that was freed is due, and `ctx.more` where there is more to
-- be done, here or by telling another queue.
function deps.tell(sets, ctx, ids, budget)
  local work = {unpack(ids)}
  local edges, at, seen = sets.edges, 1, #ctx.dropped
  while at <= #work and budget > 0 do
    local parent = work[at]
    local most = math.min(budget, SOME)
    local found = range(edges, '>', parent, most)
    local outcome, mark, exists
    if #found > 0 then
      outcome, mark = outcome_of(sets, parent)
      exists = redis.call('HEXISTS', sets.jobs, parent) == 1
      budget = budget - #found
      local adds, gone = {}, {}
      for i, member in ipairs(found) do
        gone[2 * i - 1] = member
        gone[2 * i] = '<' .. string.sub(member, #parent + 3) .. ' ' .. parent
      end
      redis.call('ZREM', edges, unpack(gone))
      for _, member in ipairs(found) do
        local child = string.sub(member, #parent + 3)
        if deps.is_remote(child) then
          adds[#adds + 1] = 0
          adds[#adds + 1] = '@' .. child .. ' ' .. parent .. ' ' .. outcome
          ctx.more = true
        else
          if redis.call('ZSCORE', sets.blocked, child)
            and deps.resolve(sets, ctx, child, parent, outcome) and exists then
            adds[#adds + 1] = 0
            adds[#adds + 1] = '=' .. parent .. ' ' .. child
          end
        end
      end
      if #adds > 0 then redis.call('ZADD', edges, unpack(adds)) end
      while seen < #ctx.dropped do
        seen = seen + 1
        work[#work + 1] = ctx.dropped[seen]
      end
    else
      mark = range(edges, '!', parent, 1)[1]
      exists = mark and redis.call('HEXISTS', sets.jobs, parent) == 1
    end
    if #found < most then
      local kept = mark and not exists and range(edges, '=', parent, SOME) or {}
      if #kept > 0 then redis.call('ZREM', edges, unpack(kept)) end
      budget = budget - #kept
      if #kept < SOME then
        if mark then redis.call('ZREM', edges, mark) end
        at = at + 1
      end
    end
  end
  for i = at, #work do
    if #range(edges, '>', work[i], 1) > 0 then
      local outcome, mark = outcome_of(sets, work[i])
      if not mark then redis.call('ZADD', edges, 0, '!' .. work[i] .. ' ' .. outcome) end
      ctx.more = true
    end
  end
  deps.turns(sets, ctx)
end

-- Jobs that have ended and whose children have not all been told.
function deps.marked(edges, count)
  local found = redis.call('ZRANGEBYLEX', edges, '[!', '("', 'LIMIT', 0, count)
  for i = 1, #found do found[i] = string.sub(found[i], 2, -3) end
  return found
end

-- Is there something to be told to, or asked of, another queue?
function deps.has_post(edges)
  return #redis.call('ZRANGEBYLEX', edges, '[?', '(A', 'LIMIT', 0, 1) > 0
end

-- Whether what a job came to is kept for one that waited for it and has not ended; nil where there
-- was not enough time to see.
function deps.is_held(sets, ctx, id)
  local found = range(sets.edges, '=', id, SOME)
  for _, member in ipairs(found) do
    if ctx.looks <= 0 then return nil end
    ctx.looks = ctx.looks - 1
    local child = string.sub(member, #id + 3)
    if redis.call('HEXISTS', sets.jobs, child) == 1
      and not redis.call('ZSCORE', sets.completed, child)
      and not redis.call('ZSCORE', sets.failed, child)
      and not redis.call('ZSCORE', sets.cancelled, child) then
      return true
    end
    redis.call('ZREM', sets.edges, member)
  end
  if #found == SOME then return nil end
  return false
end

-- Jobs that are removed with whatever is left of them: their children hear that they are cancelled.
function deps.removed(edges, ids)
  for i = 1, #ids do
    deps.forget(edges, ids[i])
    local kept = range(edges, '=', ids[i], SOME)
    if #kept > 0 then redis.call('ZREM', edges, unpack(kept)) end
    if (#kept == SOME or #range(edges, '>', ids[i], 1) > 0)
      and #range(edges, '!', ids[i], 1) == 0 then
      redis.call('ZADD', edges, 0, '!' .. ids[i] .. ' X')
    end
  end
end

return deps
