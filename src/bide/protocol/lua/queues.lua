-- queues: the names of all queues that were ever used.
-- @key   queues  reads
-- @reply ok, then names

return {'ok', redis.call('HKEYS', queues)}
