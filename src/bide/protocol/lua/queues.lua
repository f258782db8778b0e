-- queues: list the names of all queues that were ever used.
-- @reply ok, then names

return {'ok', redis.call('HKEYS', queues)}
