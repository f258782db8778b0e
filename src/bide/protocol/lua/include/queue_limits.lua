-- Sets the limits of a queue.
local queue_limits = {}

-- rate: as `rate_limit` has it; `none`, or `keep` to leave it as it is. concurrency: likewise.
function queue_limits.are_valid(rate, concurrency)
  if rate ~= 'keep' and rate ~= 'none' and (#rate > 50 or not rate_limit.bucket(rate, nil)) then
    return false, 'rate'
  end
  if concurrency ~= 'keep' and concurrency ~= 'none'
    and not string.find(concurrency, '^[1-9]%d?%d?%d?%d?%d?%d?%d?%d?$') then
    return false, 'concurrency'
  end
  return true
end

function queue_limits.set(rate, concurrency)
  local set = redis.call('HMGET', meta, 'rate', 'spent')
  if rate == 'none' then
    redis.call('HDEL', meta, 'rate', 'spent')
  elseif rate ~= 'keep' and rate ~= set[1] then
    local before = rate_limit.bucket(set[1], set[2])
    redis.call('HSET', meta, 'rate', rate)
    if before then redis.call('HSET', meta, 'spent', rate_limit.carried(before)) end
  end
  if concurrency == 'none' then
    redis.call('HDEL', meta, 'concurrency')
  elseif concurrency ~= 'keep' then
    redis.call('HSET', meta, 'concurrency', concurrency)
  end
  -- Who claims next takes it away again where there is nothing behind it.
  redis.call('HSET', meta, 'limited', 1)
  wakeup.push('-')
  locate.recall_all() -- they are claimed again within the limits
end

return queue_limits
