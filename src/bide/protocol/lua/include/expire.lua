-- Jobs that were to begin by a time, and have not: they are cancelled.
local expire = {}

local AT_ONCE = 20

-- Whether a job has never begun; one that someone has made run again after its end has.
function expire.is_unbegun(f)
  return not f or (f.attempt == 0 and f.crashes + f.strikes == 0 and not f.retried
    and (not f.first or f.missing ~= nil))
end

-- A job is due at another time; where that is an earlier one, it may expire earlier.
function expire.moved(sets, terms, id, due_us)
  local by = terms.begins_by(redis.call('HGET', sets.terms, id), due_us)
  if by then redis.call('ZADD', sets.expiring, 'XX', 'LT', by, id) end
end

-- Ends one that has been taken out of the due set of a level; of a group's, that of its group; or
-- one that was blocked.
function expire.one(sets, record, event, book, now, id, level, f)
  local meta = sets.meta
  redis.call('ZADD', sets.cancelled, now, id)
  redis.call('HSET', sets.terms, id,
    redis.call('HGET', sets.terms, id) .. string.format(' e=%.0f', now))
  if not f and level ~= 5 and level <= 10 then
    f = record.unclaimed(10 - level, now)
    redis.call('HSET', sets.run, id, record.format(f.head, f))
  end
  redis.pcall('HINCRBY', meta, 'cancelled', 1)
  redis.pcall('HINCRBY', meta, 'expired', 1)
  if book then event.add(book, 'cancelled', 'expire', id, '-', 0, 0, '') end
end

-- Ends some of those whose time is over. The time that `expiring` has is the earliest at which it
-- may be: a job that was made due later since is noted again. `blocked` is told of those that wait
-- for others, which stand there for other reasons, too; it says whether they end. Returns whether
-- there may be more, and the ids of what has ended.
function expire.some(sets, record, find, terms, event, group, book, now, blocked)
  local over = redis.call('ZRANGEBYSCORE', sets.expiring, '-inf', now, 'LIMIT', 0, AT_ONCE)
  local ended, touched = {}, {}
  if #over == 0 then return false, ended end
  redis.call('ZREM', sets.expiring, unpack(over))
  for _, id in ipairs(over) do
    local level, due_us = find.due(sets.due, id)
    local f = level and record.parse(redis.call('HGET', sets.run, id))
    local by = level
      and terms.begins_by(redis.call('HGET', sets.terms, id), record.due_from(f, due_us))
    if by and by > now then
      redis.call('ZADD', sets.expiring, by, id)
    elseif by then
      if expire.is_unbegun(f) then
        redis.call('ZREM', sets.due[level], id)
        local of = level == group.GROUPED and group.leave(sets, touched, due_us, id)
        if of then level = 10 - of.priority end
        expire.one(sets, record, event, book, now, id, level, f)
        ended[#ended + 1] = id
      end
    elseif blocked and blocked(id) then
      local priority = terms.value(redis.call('HGET', sets.terms, id), 'p') or 5
      expire.one(sets, record, event, book, now, id, 10 - priority, nil)
      ended[#ended + 1] = id
    end
  end
  group.turns(sets, touched, now)
  return #over == AT_ONCE, ended
end

return expire
