-- The end of jobs, whatever its cause: counts, events, messages to waiters, removal of data.
local finish = {}

-- One is cancelled that was in no worker's hands; `level`: of its due set, or of its group.
function finish.cancel(id, level, verb)
  redis.call('ZREM', expiring, id)
  redis.call('ZADD', cancelled, now, id)
  -- Its due set does not tell its priority any more; a record has to, if none does.
  if level <= 10 and level ~= 5 and redis.call('HEXISTS', run, id) == 0 then
    record_store.write(id, run_record.unclaimed(10 - level))
  end
  redis.pcall('HINCRBY', meta, 'cancelled', 1)
  if book then event.add('cancelled', verb, id, '-', 0, 0, '') end
end

-- Jobs have ended: their children are told, `budget` of them, and those who wait for their end.
-- Adds to `ids` those that are cancelled by this.
function finish.tell(has_edges, ids, budget)
  if has_edges then
    local known = #deps.dropped
    deps.tell(ids, budget)
    for i = known + 1, #deps.dropped do ids[#ids + 1] = deps.dropped[i] end
  end
  notify_waiters.tell(ids)
end

-- Removes every trace of jobs that no set holds any more.
function finish.remove(has_edges, ids)
  redis.call('ZREM', expiring, unpack(ids))
  dedup_keys.free(ids)
  if has_edges then deps.removed(ids) end
  retention.forget(ids, true)
end

-- Adds that nothing is left to do, if that is so: no job is active, and none is due.
function finish.drained(verb)
  if redis.call('ZCARD', active) > 0 then return end
  for i = 1, #due do
    local head = redis.call('ZRANGE', due[i], 0, 0, 'WITHSCORES')
    if head[2] and tonumber(head[2]) <= now then return end
  end
  event.add('drained', verb, '-', '-', 0, 0, '')
end

-- What such a script does last where jobs wait for others: those who wait for what was cancelled by
-- that are told, listeners read of it, and a worker is woken where something that was freed is due,
-- or more is to be told. At least as many cancelled jobs as this are forgotten.
function finish.close()
  local dropped = deps.dropped
  notify_waiters.tell(dropped)
  if #dropped > 0 then retention.trim(retention.limits(), 3, #dropped + 64) end
  event.write()
  if deps.earliest then wakeup.due(deps.earliest) end
  if deps.more then wakeup.push('-') end
end

return finish
