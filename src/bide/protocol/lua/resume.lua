-- resume: let the queue's jobs be claimed again, also where one of them has held it.
-- @reply ok

if redis.call('HDEL', meta, 'paused', 'held_until') > 0 then wakeup.push('-') end
return {'ok'}
