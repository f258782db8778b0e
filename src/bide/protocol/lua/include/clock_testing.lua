-- The clock under test: the server's time plus an offset in `meta`, or a fixed moment.
local time = redis.call('TIME')
local set = redis.call('HMGET', meta, 'test_offset_us', 'test_held_us')
if set[2] then return tonumber(set[2]) end
return time[1] * 1000000 + time[2] + (tonumber(set[1] or 0) or 0)
