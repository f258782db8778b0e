-- Sets the limits of a queue.
local queue_limits = {}

local ALL = '(a 0 -' -- before all markers

local function is_rate(rate)
  return rate == 'keep' or rate == 'none' or (#rate <= 50 and rate_limit.bucket(rate, nil))
end

-- rate: as `rate_limit` has it; `none`, or `keep` to leave it as it is. The others: likewise.
function queue_limits.are_valid(rate, concurrency, group_rate)
  if not is_rate(rate) then return false, 'rate' end
  if not is_rate(group_rate) then return false, 'group_rate' end
  if concurrency ~= 'keep' and concurrency ~= 'none'
    and not string.find(concurrency, '^[1-9]%d?%d?%d?%d?%d?%d?%d?%d?$') then
    return false, 'concurrency'
  end
  return true
end

function queue_limits.set(rate, concurrency, group_rate)
  local set = redis.call('HMGET', meta, 'rate', 'spent', 'group_rate')
  if rate == 'none' then
    redis.call('HDEL', meta, 'rate', 'spent')
  elseif rate ~= 'keep' and rate ~= set[1] then
    local before = rate_limit.bucket(set[1], set[2])
    redis.call('HSET', meta, 'rate', rate)
    if before then redis.call('HSET', meta, 'spent', rate_limit.carried(before, rate)) end
  end
  if concurrency == 'none' then
    redis.call('HDEL', meta, 'concurrency')
  elseif concurrency ~= 'keep' then
    redis.call('HSET', meta, 'concurrency', concurrency)
  end
  if group_rate ~= 'keep' and group_rate ~= (set[3] or 'none') then
    if group_rate == 'none' then
      redis.call('HDEL', meta, 'group_rate')
    else
      redis.call('HSET', meta, 'group_rate', group_rate)
    end
    -- Claims look again at the groups that wait for a token of the rate before.
    redis.call('HSET', meta, 'rewinding', ALL)
  end
  -- Who claims next takes it away again where there is nothing behind it.
  redis.call('HSET', meta, 'limited', 1)
  wakeup.push('-')
  locate.recall_all() -- they are claimed again within the limits
end

return queue_limits
