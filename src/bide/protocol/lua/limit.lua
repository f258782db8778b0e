-- limit: set the rate and the concurrency of the queue, and the rate of its groups.
-- @arg   rate        text  count, period in µs, burst; `none`, or `keep` to leave it as it is
-- @arg   concurrency  text  a number; `none`, or `keep`
-- @arg   group_rate  text  as `rate`: of each of its groups that has none of its own
-- @reply ok now

local is_valid, what = queue_limits.are_valid(rate, concurrency, group_rate)
if not is_valid then return redis.error_reply('BADARG limit ' .. what) end

-- Removes first, because a full server refuses what adds before.
redis.call('HDEL', meta, '')
queue_limits.set(rate, concurrency, group_rate)
return {'ok', now}
