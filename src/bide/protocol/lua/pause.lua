-- pause: stop claims of the queue until it is resumed.
-- @reply ok
-- @reply held      jobs that were claimed ahead are being returned; ask again

-- Removes first, because a full server refuses what adds before.
local was = redis.call('HDEL', meta, 'paused')
redis.call('HSET', meta, 'paused', 1)
if was == 0 then event.tell('paused', 'pause', {'-'}, 0) end
return {locate.recall_all() and 'held' or 'ok'}
