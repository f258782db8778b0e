-- Jobs that were to begin by a time, and have not: they are cancelled.
local expire = {}

local AT_ONCE = 20

-- Whether a job has never begun; one that someone has made run again after its end has.
function expire.is_unbegun(rec)
  return not rec or (rec.attempt == 0 and rec.crashes + rec.strikes == 0 and not rec.retried
    and (not rec.first or rec.missing ~= nil))
end

-- A job is due at another time; where that is an earlier one, it may expire earlier.
function expire.moved(sets, constraints, id, due_us)
  local by = constraints.begins_by(redis.call('HGET', sets.terms, id), due_us)
  if by then redis.call('ZADD', sets.expiring, 'XX', 'LT', by, id) end
end

-- Ends one that has been taken out of the due set of a level; of a group's, that of its group; or
-- one that was blocked.
function expire.one(sets, run_record, event, book, now, id, level, rec)
  local meta = sets.meta
  redis.call('ZADD', sets.cancelled, now, id)
  redis.call('HSET', sets.terms, id,
    redis.call('HGET', sets.terms, id) .. string.format(' e=%.0f', now))
  if not rec and level ~= 5 and level <= 10 then
    rec = run_record.unclaimed(10 - level, now)
    redis.call('HSET', sets.run, id, run_record.format(rec.head, rec))
  end
  redis.pcall('HINCRBY', meta, 'cancelled', 1)
  redis.pcall('HINCRBY', meta, 'expired', 1)
  if book then event.add(book, 'cancelled', 'expire', id, '-', 0, 0, '') end
end

-- Ends some of those whose time is over. The time that `expiring` has is the earliest at which it
-- may be: a job that was made due later since is noted again. `blocked` is told of those that wait
-- for others, which stand there for other reasons, too; it says whether they end. Returns whether
-- there may be more, and the ids of what has ended.
function expire.some(sets, run_record, locate, constraints, event, group, book, now, blocked)
  local over = redis.call('ZRANGEBYSCORE', sets.expiring, '-inf', now, 'LIMIT', 0, AT_ONCE)
  local ended, touched = {}, {}
  if #over == 0 then return false, ended end
  redis.call('ZREM', sets.expiring, unpack(over))
  for _, id in ipairs(over) do
    local level, due_us = locate.due(sets.due, id)
    local rec = level and run_record.parse(redis.call('HGET', sets.run, id))
    local by = level and constraints.begins_by(redis.call('HGET', sets.terms, id),
      run_record.due_from(rec, due_us))
    if by and by > now then
      redis.call('ZADD', sets.expiring, by, id)
    elseif by then
      if expire.is_unbegun(rec) then
        redis.call('ZREM', sets.due[level], id)
        local grp = level == group.GROUPED and group.leave(sets, touched, due_us, id)
        if grp then level = 10 - grp.priority end
        expire.one(sets, run_record, event, book, now, id, level, rec)
        ended[#ended + 1] = id
      end
    elseif blocked and blocked(id) then
      local priority = constraints.value(redis.call('HGET', sets.terms, id), 'p') or 5
      expire.one(sets, run_record, event, book, now, id, 10 - priority, nil)
      ended[#ended + 1] = id
    end
  end
  group.turns(sets, touched, now)
  return #over == AT_ONCE, ended
end

return expire
