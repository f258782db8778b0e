-- Where a job is: the sets are the only record of its state, so they are asked.
local locate = {LEVELS = 10}

-- Takes the job out of the due set that holds it; its index in `due`, or nil, and of a job of a
-- group, whose set is the last, when it was due.
function locate.take_due(due, id)
  local at = redis.call('ZSCORE', due[#due], id)
  if at then
    redis.call('ZREM', due[#due], id)
    return #due, tonumber(at)
  end
  for i = 1, #due - 1 do
    if redis.call('ZREM', due[i], id) == 1 then return i end
  end
end

function locate.due(due, id)
  for i = 1, #due do
    local score = redis.call('ZSCORE', due[i], id)
    if score then return i, tonumber(score) end
  end
end

-- The state of a job that is not due, and when that state began or (active) its lease ends.
function locate.elsewhere(active, completed, failed, cancelled, id, blocked)
  local score = redis.call('ZSCORE', active, id)
  if score then return 'active', tonumber(score) end
  score = redis.call('ZSCORE', completed, id)
  if score then return 'completed', tonumber(score) end
  score = redis.call('ZSCORE', failed, id)
  if score then return 'failed', tonumber(score) end
  score = redis.call('ZSCORE', cancelled, id)
  if score then return 'cancelled', tonumber(score) end
  score = redis.call('ZSCORE', blocked, id)
  if score then return 'blocked', tonumber(score) end
  return 'gone'
end

return locate
