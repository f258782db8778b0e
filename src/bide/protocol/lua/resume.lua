-- resume: let the queue's jobs be claimed again, also where one of them has held it.
-- @key   meta  clears
-- @key   wake  hints
-- @reply ok
-- @include wakeup

if redis.call('HDEL', meta, 'paused', 'held_until') > 0 then wakeup.push(wake, '-') end
return {'ok'}
