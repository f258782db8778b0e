-- The clock under test of all queues of a prefix: the server's own time plus an offset that stands
-- in one key of the prefix, so that one command moves them all, also those first used later. The
-- key is none that a script declares: this clock is for a server of a test's own, never a Cluster.
return function(meta)
  local time = redis.call('TIME')
  local offset = redis.call('GET', string.match(meta, '^[^{]*') .. 'test_offset_us')
  return time[1] * 1000000 + time[2] + (tonumber(offset or 0) or 0)
end
