-- pause: let no job of the queue be claimed until it is resumed.
-- @reply ok
-- @reply held      jobs that were claimed ahead are being returned; ask again

-- Removes first, because a full server refuses what adds before.
redis.call('HDEL', meta, 'paused')
redis.call('HSET', meta, 'paused', 1)
return {locate.recall_all() and 'held' or 'ok'}
