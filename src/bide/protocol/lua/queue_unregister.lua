-- queue_unregister: take queues off the list of those that are in use.
-- @rest  queue
-- @reply ok

for i = rest, #ARGV do redis.call('HDEL', queues, ARGV[i]) end
return {'ok'}
