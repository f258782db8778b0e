-- pause: let no job of the queue be claimed until it is resumed.
-- @key   meta  sets
-- @reply ok

redis.call('HSET', meta, 'paused', 1)
return {'ok'}
