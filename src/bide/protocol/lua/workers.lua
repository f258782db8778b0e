-- workers: what workers last said of themselves.
-- @key   workers  reads
-- @reply ok now, then worker and what it said

local time = redis.call('TIME')
return {'ok', time[1] * 1000000 + time[2], redis.call('HGETALL', workers)}
