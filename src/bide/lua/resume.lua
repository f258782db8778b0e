-- resume: let the queue's jobs be claimed again.
-- @key   meta  clears
-- @key   wake  hints
-- @reply ok
-- @include hint

if redis.call('HDEL', meta, 'paused') == 1 then hint.push(wake, '-') end
return {'ok'}
