-- queue_register: add queues to the list of queues.
-- @rest  queue
-- @reply ok now

-- Removes (nothing) first, so that a worker can start on a full server, and drain it.
redis.call('HDEL', queues, '')
for i = rest, #ARGV do redis.call('HSETNX', queues, ARGV[i], now) end
return {'ok', now}
