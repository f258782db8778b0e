-- The clock under test: the server's own time plus an offset that the test keeps in `meta`.
local time = redis.call('TIME')
local offset = redis.call('HGET', meta, 'test_offset_us')
return time[1] * 1000000 + time[2] + (tonumber(offset or 0) or 0)
