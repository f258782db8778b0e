-- The part of claims for dependencies: they continue unfinished deliveries, remove jobs that were
-- added only in part, and repeat subscriptions to other queues without a reply.
local deps_sweep = {}

local SOME = 100

-- Tells the children of jobs that have just ended, and of some whose children were left over.
function deps_sweep.go_on(lists, most, budget)
  local ids = most > 0 and deps_edges.marked(most) or {}
  for _, list in ipairs(lists) do
    for _, id in ipairs(list) do ids[#ids + 1] = id end
  end
  if #ids == 0 then return end
  deps.earliest = nil
  deps.tell(ids, budget)
end

-- Notes that parents in other queues are to be asked, if the job waits for any; of many, for some.
function deps_sweep.ask(id)
  local first, last = deps_edges.remote(id)
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
function deps_sweep.is_over(id)
  if not redis.call('ZSCORE', blocked, id) then
    deps.leave(id)
    return false
  end
  if not deps_edges.is_open(id) then -- who was placing it has given up: it never was
    deps.discard(id)
    return false
  end
  local by = constraints.begins_by(redis.call('HGET', terms, id))
  if by and by <= now then
    redis.call('ZREM', blocked, id)
    deps_edges.forget(id)
    return true
  end
  local at = by
  if deps_sweep.ask(id) then at = math.min(by or math.huge, now + deps.ASK_US) end
  if at then redis.call('ZADD', expiring, at, id) end
  return false
end

return deps_sweep
