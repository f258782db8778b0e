-- Cancel a job that is delayed, as RQ's own cancel would.
-- KEYS: the job, the sorted set of delayed jobs, RQ's registry of cancelled jobs
-- ARGV: the job's id; the queue's name; the gate's; what the usual sorted sets begin with
-- Reply: 1, or 0 if it was not delayed
local job, delayed, cancelled = KEYS[1], KEYS[2], KEYS[3]
local id, name, gate, delays = unpack(ARGV, 1, 4)
if not still_delayed(job, id, name, gate, delayed, delays) then
  return 0
end
redis.call('ZREM', delayed, id) -- first: then a full server lets the rest pass
redis.call('HSET', job, 'status', 'canceled', 'origin', name)
redis.call('ZADD', cancelled, math.floor(clock() / 1000000), id)
return 1
