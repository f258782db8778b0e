-- worker_leave: a worker stops: its promise is dropped, and another keeper is found.
-- @key   keep    removes
-- @key   park    removes
-- @key   claims  removes
-- @key   wake    hints when the worker kept the time
-- @arg   worker  text
-- @reply ok
-- @include wakeup

redis.call('ZREM', park, worker)
redis.call('HDEL', claims, worker)
if redis.call('ZREM', keep, worker) == 1 then wakeup.push(wake, '-') end
return {'ok'}
