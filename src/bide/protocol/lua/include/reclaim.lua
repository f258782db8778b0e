-- Leases that have ended without an outcome. What was held is due again, in its old place; a job
-- that killed its worker three times while it ran alone has failed, and one whose end was asked for
-- has found it.
local reclaim = {}

local AT_ONCE, CRASHES, STRIKES, MANY_STRIKES = 10, 3, 2, 10
local LEVELS, ALONE = 10, 11

-- What a worker tells hooks of an attempt that ended so. `lost` is flat: six values of each.
local function tell(lost, run_record, id, rec, has_failed)
  local told = {id, run_record.token(rec.head), run_record.tries(rec), rec.due, rec.worker,
    has_failed}
  for _, value in ipairs(told) do lost[#lost + 1] = value end
end

local function one(sets, run_record, history, event, group, touched, book, now, id, lost)
  local meta = sets.meta
  redis.call('ZREM', sets.active, id)
  local rec = run_record.parse(redis.call('HGET', sets.run, id))
    or run_record.unknown(run_record.fresh(now), now)
  local grp = sets.has_groups
    and group.touch(sets, touched, redis.call('HGET', sets.terms, id) or nil, rec.priority)
  if grp then group.release(sets, grp, id) end
  local note = history.crash(rec, now)
  local has_ended = true
  if rec.alone == 1 then rec.crashes = rec.crashes + 1 else rec.strikes = rec.strikes + 1 end
  rec.alone = 0
  redis.pcall('HINCRBY', meta, 'reclaimed', 1)
  if book then
    event.add(book, 'reclaimed', 'reclaim', id, rec.worker, rec.attempt, math.min(rec.due, now), '')
  end
  if redis.call('ZREM', sets.asked, id) == 1 then
    redis.call('ZADD', sets.cancelled, now, id)
    redis.pcall('HINCRBY', meta, 'cancelled', 1)
    if book then event.add(book, 'cancelled', 'reclaim', id, rec.worker, rec.attempt, 0, '') end
  elseif rec.crashes >= CRASHES or rec.strikes >= MANY_STRIKES then
    redis.call('ZADD', sets.failed, now, id)
    redis.pcall('HINCRBY', meta, 'failed', 1)
    local why = string.format(
      '{"type":"WorkerCrashed","message":"Its worker died or stopped %d times under'
      .. ' this job, %d of them while it ran alone; the last was %s."}',
      rec.crashes + rec.strikes, rec.crashes, (string.gsub(rec.worker, '["\\]', '?')))
    note = history.error(rec, now, why)
    tell(lost, run_record, id, rec, 1)
    if book then event.add(book, 'failed', 'reclaim', id, rec.worker, rec.attempt, 0, why) end
  else
    tell(lost, run_record, id, rec, 0)
    local level = LEVELS - rec.priority
    if rec.strikes >= STRIKES then level = ALONE end
    rec.due = math.min(rec.due, now) -- it was due, whatever the clock has been set to since
    if grp then
      group.put(sets, grp, rec.due, id)
    else
      redis.call('ZADD', sets.due[level], rec.due, id)
    end
    has_ended = false
  end
  rec.attempt = rec.attempt - 1
  redis.call('HSET', sets.run, id, run_record.format(rec.head, rec))
  redis.call('HSET', sets.notes, id, history.add(redis.call('HGET', sets.notes, id), note))
  return has_ended
end

-- Some of the leases that ended by `ended_by`; `sets` has the queue's keys by their names, `book`
-- is where events are gathered, if someone listens. Returns whether there may be more, the ids of
-- what has come to its end by this, how many there were, and what is to be told of those that have
-- not been cancelled.
function reclaim.some(sets, run_record, history, event, group, book, now, ended_by)
  local expired = redis.call('ZRANGEBYSCORE', sets.active, '-inf', ended_by, 'LIMIT', 0, AT_ONCE)
  local given_up, touched, lost = {}, {}, {}
  for i = 1, #expired do
    if one(sets, run_record, history, event, group, touched, book, now, expired[i],
      lost) then
      given_up[#given_up + 1] = expired[i]
    end
  end
  group.turns(sets, touched, now)
  return #expired == AT_ONCE, given_up, #expired, lost
end

-- The clock was set back: leases given before reach further than any lease may, which is to
-- `longest`. Shortens some; true if there may be more.
function reclaim.clamp(active, longest)
  local far = redis.call('ZREVRANGEBYSCORE', active, '+inf', '(' .. string.format('%.0f', longest),
    'LIMIT', 0, AT_ONCE)
  for i = 1, #far do redis.call('ZADD', active, longest, far[i]) end
  return #far == AT_ONCE
end

return reclaim
