-- What claims do for jobs that wait for others: they go on with what was left over, remove what was
-- left behind half placed, and see to it that other queues are asked where nothing was heard of
-- them.
local deps_sweep = {}

local SOME = 100

-- Tells the children of jobs that have just ended, and of some whose children were left over.
function deps_sweep.go_on(sets, ctx, deps, lists, most, budget)
  local ids = most > 0 and deps.marked(sets.edges, most) or {}
  for _, list in ipairs(lists) do
    for _, id in ipairs(list) do ids[#ids + 1] = id end
  end
  if #ids == 0 then return end
  ctx.earliest = nil
  deps.tell(sets, ctx, ids, budget)
end

-- Notes that parents in other queues are to be asked, if the job waits for any; of many, for some.
function deps_sweep.ask(edges, id)
  local first, last = '[<' .. id .. ' {', '(<' .. id .. ' |'
  local count = redis.call('ZLEXCOUNT', edges, first, last)
  if count == 0 then return false end
  local from = count > SOME and math.random(0, count - SOME) or 0
  local found = redis.call('ZRANGEBYLEX', edges, first, last, 'LIMIT', from, SOME)
  local adds = {}
  for _, member in ipairs(found) do
    adds[#adds + 1] = 0
    adds[#adds + 1] = '?' .. string.sub(member, 2)
  end
  redis.call('ZADD', edges, unpack(adds))
  return true
end

-- A job stood in `expiring` that is not due. If it is blocked: whether it has expired by this, and
-- is not blocked any more.
function deps_sweep.is_over(sets, ctx, deps, id)
  if not redis.call('ZSCORE', sets.blocked, id) then
    deps.leave(sets, ctx, id)
    return false
  end
  if not deps.is_open(sets.edges, id) then -- who was placing it has given up: it never was
    redis.call('ZREM', sets.blocked, id)
    redis.call('HDEL', sets.jobs, id)
    redis.call('HDEL', sets.terms, id)
    deps.removed(sets.edges, {id})
    deps.leave(sets, ctx, id)
    return false
  end
  local by = ctx.constraints.begins_by(redis.call('HGET', sets.terms, id))
  if by and by <= ctx.now then
    redis.call('ZREM', sets.blocked, id)
    deps.forget(sets.edges, id)
    return true
  end
  local at = by
  if deps_sweep.ask(sets.edges, id) then at = math.min(by or math.huge, ctx.now + deps.ASK_US) end
  if at then redis.call('ZADD', sets.expiring, at, id) end
  return false
end

return deps_sweep
