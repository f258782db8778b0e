-- worker_leave: remove the data of a worker that stops, and find another timekeeper.
-- @arg   worker  text
-- @reply ok

redis.call('ZREM', park, worker)
redis.call('HDEL', claims, worker)
if redis.call('ZREM', keep, worker) == 1 then wakeup.push('-') end
return {'ok'}
