-- worker_start: read the facts that a worker checks before it serves the queue.
-- @reply ok kind policy, each `-` where there is none, or INFO is denied

local info = redis.pcall('INFO', 'memory')
local policy = type(info) == 'string' and string.match(info, 'maxmemory_policy:(%S+)')
return {'ok', redis.call('HGET', meta, 'kind') or '-', policy or '-'}
