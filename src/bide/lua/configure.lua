-- configure: set how long, and how many, finished jobs of the queue are kept.
-- @key   meta       sets
-- @key   jobs       looks
-- @arg   retention  text     count and age in µs of what is kept completed, failed, cancelled
-- @arg   only_new   integer  1 to leave a queue alone that has a setting, or jobs
-- @reply ok

if not string.find(retention, '^%d+ %d+ %d+ %d+ %d+ %d+$') then
  return redis.error_reply('BADARG configure retention')
end
if only_new == 1
  and (redis.call('EXISTS', jobs) == 1 or redis.call('HEXISTS', meta, 'retention') == 1) then
  return {'ok'}
end
-- Removes first, because a full server refuses what adds before.
redis.call('HDEL', meta, 'retention')
redis.call('HSET', meta, 'retention', retention)
return {'ok'}
