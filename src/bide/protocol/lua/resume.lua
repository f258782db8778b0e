-- resume: let workers claim jobs of the queue again, also if a job has paused it.
-- @reply ok

local was = redis.call('HDEL', meta, 'paused')
if was + redis.call('HDEL', meta, 'held_until') > 0 then wakeup.push('-') end
if was == 1 then event.tell('resumed', 'resume', {'-'}, 0) end
return {'ok'}
