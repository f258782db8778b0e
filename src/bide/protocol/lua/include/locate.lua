-- The place of a job: the sets are the only record of its state, so they are read.
local locate = {}

-- The index in `due` of the set that holds a job, and when it is due; or nothing.
function locate.due(id)
  for i = 1, #due do
    local score = redis.call('ZSCORE', due[i], id)
    if score then return i, tonumber(score) end
  end
end

-- The same of a job that is taken out of its set.
function locate.take_due(id)
  local level, at = locate.due(id)
  if level then redis.call('ZREM', due[level], id) end
  return level, at
end

local ELSEWHERE = {{'active', active}, {'completed', completed}, {'failed', failed},
  {'cancelled', cancelled}, {'blocked', blocked}}

-- The state of a job that is not due, and when that state began or (active) its lease ends.
function locate.elsewhere(id)
  for _, place in ipairs(ELSEWHERE) do
    local score = redis.call('ZSCORE', place[2], id)
    if score then return place[1], tonumber(score) end
  end
  return 'gone'
end

-- The state of a job, when it is due or that state began, and its index in `due` if it has one.
function locate.state(id)
  local level, at = locate.due(id)
  if level then return at > now and 'delayed' or 'waiting', at, level end
  return locate.elsewhere(id)
end

-- Take a job that has ended out of its set, if it is in one of these states. Whether it was.
function locate.take_ended(id, states)
  for i = 2, 4 do
    local state, set = ELSEWHERE[i][1], ELSEWHERE[i][2]
    if string.find(states, state, 1, true) and redis.call('ZREM', set, id) == 1 then return true end
  end
  return false
end

-- Whether a worker has claimed a job ahead, and has not started it: it is not due yet. Then the
-- worker is asked to return it, and until it is due it is not claimed ahead again. The caller asks
-- once more: by then the job can be changed, or has started.
function locate.recall(id)
  local rec = record_store.read(id)
  if not rec or rec.due <= now or rec.due > now + run_record.AHEAD then return false end
  redis.pcall('HSET', meta, 'exact_until', now + run_record.AHEAD)
  redis.pcall('PUBLISH', asked, '~' .. id)
  return true
end

-- The same of all jobs of the queue.
function locate.recall_all()
  local until_us = tonumber(redis.call('HGET', meta, 'ahead_until')) or 0
  if until_us <= now or until_us > now + run_record.AHEAD then return false end
  redis.pcall('HSET', meta, 'exact_until', now + 2 * run_record.AHEAD)
  redis.pcall('PUBLISH', asked, '~')
  return true
end

return locate
