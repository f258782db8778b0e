-- Where a job is: the sets are the only record of its state, so they are asked.
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

return locate
