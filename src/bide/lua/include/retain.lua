-- Retention: finished jobs are kept up to an age and a count, and removed in bounded pieces.
--
-- What finished in the last 15 s is spared, so that a caller that repeats itself after a lost
-- reply (for 10 s at most) still finds the record that makes the repeat harmless.
local retain = {}

local SPARE = 15000000

function retain.trim(set, jobs, run, results, errors, now, count, age_us, limit)
  local excess = redis.call('ZCARD', set) - count
  local oldest = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')
  if not oldest[2] then return end
  local spared, aged = now - SPARE, now - math.max(age_us, SPARE)
  local first = tonumber(oldest[2])
  if first > aged and (excess <= 0 or first > spared) then return end
  local head = redis.call('ZRANGE', set, 0, limit - 1, 'WITHSCORES')
  local ids = {}
  for i = 1, #head, 2 do
    local finished = tonumber(head[i + 1])
    if finished > spared then break end
    if finished > aged and #ids >= excess then break end
    ids[#ids + 1] = head[i]
  end
  if #ids == 0 then return end
  redis.call('ZREM', set, unpack(ids))
  redis.call('HDEL', jobs, unpack(ids))
  redis.call('HDEL', run, unpack(ids))
  redis.call('HDEL', results, unpack(ids))
  redis.call('HDEL', errors, unpack(ids))
end

return retain
