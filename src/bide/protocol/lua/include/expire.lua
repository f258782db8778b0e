-- Jobs that have not started in time: they are cancelled.
local expire = {}

local AT_ONCE = 20

-- Ends one that has been taken out of the due set of a level; of a group's, that of its group; or
-- one that was blocked.
function expire.one(id, level)
  finish.cancel(id, level, 'expire')
  redis.call('HSET', terms, id,
    redis.call('HGET', terms, id) .. string.format(' e=%.0f', now))
  redis.pcall('HINCRBY', meta, 'expired', 1)
end

-- Ends some of those whose time is over. The time that `expiring` has is the earliest at which it
-- may be: a job that was made due later since is noted again. `is_over` is told of those that wait
-- for others, which stand there for other reasons, too; it says whether they end. Returns whether
-- there may be more, and the ids of what has ended.
function expire.some(is_over)
  local over = redis.call('ZRANGEBYSCORE', expiring, '-inf', now, 'LIMIT', 0, AT_ONCE)
  local ended = {}
  if #over == 0 then return false, ended end
  redis.call('ZREM', expiring, unpack(over))
  for _, id in ipairs(over) do
    local level, due_us = locate.due(id)
    local rec = level and record_store.read(id)
    local by = level and constraints.begins_by(redis.call('HGET', terms, id),
      run_record.due_from(rec, due_us))
    if by and by > now then
      redis.call('ZADD', expiring, by, id)
    elseif by then
      if run_record.is_unbegun(rec) then
        redis.call('ZREM', due[level], id)
        local grp = level == group.GROUPED and group.leave(due_us, id)
        if grp then level = 10 - grp.priority end
        expire.one(id, level)
        ended[#ended + 1] = id
      end
    elseif is_over and is_over(id) then
      expire.one(id, constraints.level(redis.call('HGET', terms, id)))
      ended[#ended + 1] = id
    end
  end
  group.turns()
  return #over == AT_ONCE, ended
end

return expire
