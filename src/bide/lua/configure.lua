-- configure: set how long, and how many, finished jobs of the queue are kept.
-- @key   meta       sets
-- @arg   retention  text  count and age in µs of what is kept completed, failed, cancelled
-- @reply ok

if not string.find(retention, '^%d+ %d+ %d+ %d+ %d+ %d+$') then
  return redis.error_reply('BADARG configure retention')
end
-- Removes first, because a full server refuses what adds before.
redis.call('HDEL', meta, 'retention')
redis.call('HSET', meta, 'retention', retention)
return {'ok'}
