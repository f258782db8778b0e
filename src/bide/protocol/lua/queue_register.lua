-- queue_register: note that queues are in use, so that they can be listed.
-- @key   queues   adds
-- @rest  queue
-- @reply ok now

-- Removes (nothing) first, so that a worker can start on a full server, and drain it.
redis.call('HDEL', queues, '')
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
for i = rest, #ARGV do redis.call('HSETNX', queues, ARGV[i], now) end
return {'ok', now}
