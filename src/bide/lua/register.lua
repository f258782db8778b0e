-- register: note that queues are in use, so that they can be listed.
-- @key   queues   adds
-- @rest  queue
-- @reply ok now

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
for i = rest, #ARGV do redis.call('HSETNX', queues, ARGV[i], now) end
return {'ok', now}
