-- queue_unregister: remove queues from the list of queues.
-- @rest  queue
-- @reply ok

for i = rest, #ARGV do redis.call('HDEL', queues, ARGV[i]) end
return {'ok'}
