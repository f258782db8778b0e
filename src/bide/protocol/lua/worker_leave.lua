-- worker_leave: a worker stops: its deadline is dropped, and another timekeeper is found.
-- @arg   worker  text
-- @reply ok

redis.call('ZREM', park, worker)
-- Its claims behind blocking calls are remembered: a late one must not take a job.
redis.call('HDEL', claims, worker)
if redis.call('ZREM', keep, worker) == 1 then wakeup.push('-') end
return {'ok'}
