-- workers: what workers last said of themselves.
-- @reply ok now, then worker and what it said

return {'ok', now, redis.call('HGETALL', workers)}
