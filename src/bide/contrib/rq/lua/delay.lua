-- Save a job and put it where it waits for its due time.
-- KEYS: the job, the sorted set of delayed jobs, RQ's set of queues, the set of unusual sorted sets
-- ARGV: the job's id; "in" or "at"; microseconds from now or since the epoch; "unique" or "";
--       the queue's key; the channel of wake-up messages; what no other call has; the sorted
--       set's key, or ""
--       for the usual one; then field and value of the job, again and again
-- Reply: when it is due, in seconds; "exists" where a unique id is taken; "done" where this very
--        call was done before: its reply was lost, and the job may have run since
local job, delayed, queues, sets = unpack(KEYS)
local id, from, us, unique, queue, channel, call, set = unpack(ARGV, 1, 8)
local kind = redis.call('TYPE', delayed).ok
if kind ~= 'zset' and kind ~= 'none' then
  return redis.error_reply('WRONGTYPE ' .. delayed .. ' is a ' .. kind .. ', not a sorted set')
end
local taken = redis.call('EXISTS', job) == 1
if taken and redis.call('HGET', job, 'delay_call') == call then
  return 'done'
end
if taken and unique == 'unique' then
  return 'exists'
end
local now = clock()
us = from == 'in' and now + us or tonumber(us)
redis.call('SADD', queues, queue) -- first: then a full server refuses the whole
if set ~= '' then
  redis.call('SADD', sets, set)
end
-- What an earlier job of this id may have left; its hash may be about to expire with its result.
redis.call(
  'HDEL', job, 'ttl', 'enqueued_at', 'delay_queue', 'delay_us', 'delay_ttl', 'delay_key',
  'delay_limit', 'delayed_in', 'rate_limit_key', 'rate_limit_concurrency'
)
redis.call('HSET', job, 'delay_call', call, unpack(ARGV, 9))
redis.call('PERSIST', job)
redis.call('PERSIST', job .. ':dependents')
return delay_until(delayed, channel, id, us, now)
