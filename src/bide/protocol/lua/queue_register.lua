-- queue_register: note that queues are in use, so that they can be listed.
-- @rest  queue
-- @reply ok now

-- Removes (nothing) first, so that a worker can start on a full server, and drain it.
redis.call('HDEL', queues, '')
for i = rest, #ARGV do redis.call('HSETNX', queues, ARGV[i], now) end
return {'ok', now}
