-- pause: let no job of the queue be claimed until it is resumed.
-- @reply ok

-- Removes first, because a full server refuses what adds before.
redis.call('HDEL', meta, 'paused')
redis.call('HSET', meta, 'paused', 1)
return {'ok'}
