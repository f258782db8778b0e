-- The clock under test of all queues of a prefix: the server's time plus an offset, or a fixed
-- moment. One key has both, so that one command moves all queues, also those used later. No script
-- declares the key: this clock is for a test's own server, not for a Cluster.
local time = redis.call('TIME')
local prefix = string.match(meta, '^[^{]*')
local set = redis.call('HMGET', prefix .. 'test_clock', 'offset_us', 'held_us')
if set[2] then return tonumber(set[2]) end
return time[1] * 1000000 + time[2] + (tonumber(set[1] or 0) or 0)
