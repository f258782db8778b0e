-- queues: the names of all queues that were ever used.
-- @key   queues  reads
-- @reply ok, then names

return {'ok', unpack(redis.call('HKEYS', queues))}
