-- limit: set how many of the queue's jobs may begin in a time, and how many may run at once.
-- @arg   rate        text  count, period in µs, burst; `none`, or `keep` to leave it as it is
-- @arg   concurrency  text  a number; `none`, or `keep`
-- @reply ok now

local is_valid, what = queue_limits.are_valid(rate, concurrency)
if not is_valid then return redis.error_reply('BADARG limit ' .. what) end

-- Removes first, because a full server refuses what adds before.
redis.call('HDEL', meta, '')
queue_limits.set(rate, concurrency)
return {'ok', now}
