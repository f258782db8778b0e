-- workers: read the latest reports of workers.
-- @reply ok now, then worker and what it said

return {'ok', now, redis.call('HGETALL', workers)}
