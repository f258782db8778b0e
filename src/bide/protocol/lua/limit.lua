-- limit: set how many of the queue's jobs may begin in a time, and how many may run at once.
-- @arg   rate        text  count, period in µs, burst; `none`, or `keep` to leave it as it is
-- @arg   concurrency  text  a number; `none`, or `keep`
-- @reply ok now

if rate ~= 'keep' and rate ~= 'none' and (#rate > 50 or not rate_limit.bucket(rate, nil)) then
  return redis.error_reply('BADARG limit rate')
end
if concurrency ~= 'keep' and concurrency ~= 'none'
  and not string.find(concurrency, '^[1-9]%d?%d?%d?%d?%d?%d?%d?%d?$') then
  return redis.error_reply('BADARG limit concurrency')
end

-- Removes first, because a full server refuses what adds before.
redis.call('HDEL', meta, '')
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
return {'ok', now}
