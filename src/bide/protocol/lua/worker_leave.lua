-- worker_leave: a worker stops: its deadline is dropped, and another timekeeper is found.
-- @arg   worker  text
-- @reply ok

redis.call('ZREM', park, worker)
redis.call('HDEL', claims, worker)
if redis.call('ZREM', keep, worker) == 1 then wakeup.push('-') end
return {'ok'}
