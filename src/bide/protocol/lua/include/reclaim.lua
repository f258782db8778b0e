-- Leases that have ended without an outcome. The job is due again, in its old place. It is
-- cancelled if that was requested, and fails if it has killed its worker three times while alone.
local reclaim = {}

local AT_ONCE, CRASHES, STRIKES, MANY_STRIKES = 10, 3, 2, 10
local LEVELS, ALONE = 10, 11

-- What a worker tells hooks of an attempt that ended so. `lost` is flat: six values of each.
local function tell(lost, id, rec, has_failed)
  local told = {id, run_record.token(rec.head), run_record.tries(rec), rec.due, rec.worker,
    has_failed}
  for _, value in ipairs(told) do lost[#lost + 1] = value end
end

local function one(id, has_groups, lost)
  redis.call('ZREM', active, id)
  local rec = record_store.read(id) or run_record.unknown(run_record.fresh(now))
  local grp = has_groups and group.touch(redis.call('HGET', terms, id) or nil, rec.priority)
  if grp then group.release(grp, id) end
  local note = string.format('C %d %.0f %.0f %s', rec.attempt, rec.started, now, rec.worker)
  local has_ended = true
  if rec.alone == 1 then rec.crashes = rec.crashes + 1 else rec.strikes = rec.strikes + 1 end
  rec.alone = 0
  redis.pcall('HINCRBY', meta, 'reclaimed', 1)
  if book then
    event.add('reclaimed', 'reclaim', id, rec.worker, rec.attempt, math.min(rec.due, now), '')
  end
  if redis.call('ZREM', asked, id) == 1 then
    redis.call('ZADD', cancelled, now, id)
    redis.pcall('HINCRBY', meta, 'cancelled', 1)
    if book then event.add('cancelled', 'reclaim', id, rec.worker, rec.attempt, 0, '') end
  elseif rec.crashes >= CRASHES or rec.strikes >= MANY_STRIKES then
    redis.call('ZADD', failed, now, id)
    redis.pcall('HINCRBY', meta, 'failed', 1)
    local why = string.format(
      '{"type":"WorkerCrashed","message":"Its worker died or stopped %d times under'
      .. ' this job, %d of them while it ran alone; the last was %s."}',
      rec.crashes + rec.strikes, rec.crashes, (string.gsub(rec.worker, '["\\]', '?')))
    note = history.error(rec, why)
    tell(lost, id, rec, 1)
    if book then event.add('failed', 'reclaim', id, rec.worker, rec.attempt, 0, why) end
  else
    tell(lost, id, rec, 0)
    local level = LEVELS - rec.priority
    if rec.strikes >= STRIKES then level = ALONE end
    rec.due = run_record.due_again(rec)
    if grp then
      group.put(grp, rec.due, id)
    else
      redis.call('ZADD', due[level], rec.due, id)
    end
    has_ended = false
  end
  if has_ended then redis.call('ZREM', expiring, id) end
  rec.attempt = rec.attempt - 1
  record_store.write(id, rec)
  history.note(id, note)
  return has_ended
end

-- Some of the leases that ended by `ended_by`. Returns whether there may be more, the ids of what
-- has ended by this, how many there were, and what is to be told of those that are not cancelled.
function reclaim.some(ended_by, has_groups)
  local expired = redis.call('ZRANGEBYSCORE', active, '-inf', ended_by, 'LIMIT', 0, AT_ONCE)
  local given_up, lost = {}, {}
  for i = 1, #expired do
    if one(expired[i], has_groups, lost) then given_up[#given_up + 1] = expired[i] end
  end
  if #expired > 0 and has_groups then group.turns() end
  return #expired == AT_ONCE, given_up, #expired, lost
end

-- The clock was set back: shortens some leases that reach beyond `longest`; true if more may.
function reclaim.clamp(longest)
  local far = redis.call('ZREVRANGEBYSCORE', active, '+inf', '(' .. string.format('%.0f', longest),
    'LIMIT', 0, AT_ONCE)
  for i = 1, #far do redis.call('ZADD', active, longest, far[i]) end
  return #far == AT_ONCE
end

return reclaim
