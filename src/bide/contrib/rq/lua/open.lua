-- Open the gate: jobs whose dependencies are met have their delay from now.
-- KEYS: the gate's list
-- ARGV: what a job's key, a sorted set of delayed jobs, a channel of hints and a registry of
--       deferred jobs begin with; how many jobs at most
-- Reply: how many were read; ids that were let through; ids of no job that waits for its delay
--
-- RQ's worker has pushed each to the gate's list because the job's origin says so. Here the job
-- gets its own queue as origin again.
local gate = KEYS[1]
local jobs, delays, hints, deferred, limit = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local ids = redis.call('LRANGE', gate, 0, limit - 1)
local fields = {}
for i, id in ipairs(ids) do
  local job = redis.pcall('HMGET', jobs .. id, 'status', 'delay_queue', 'delay_us', 'delay_ttl')
  local kind = job[2] and redis.call('TYPE', delays .. job[2]).ok
  if kind and kind ~= 'zset' and kind ~= 'none' then
    return redis.error_reply('WRONGTYPE ' .. delays .. job[2] .. ' is a ' .. kind .. ', not a sorted set')
  end
  fields[i] = job
end
if #ids > 0 then
  redis.call('LTRIM', gate, #ids, -1)
end
local now = clock()
local through, strays = {}, {}
for i, id in ipairs(ids) do
  local job = jobs .. id
  local status, queue, us, ttl = unpack(fields[i], 1, 4)
  if fields[i].err or status ~= 'queued' or not queue or not tonumber(us) then
    strays[#strays + 1] = id
  else
    redis.call('HSET', job, 'status', 'scheduled', 'origin', queue)
    redis.call('HDEL', job, 'enqueued_at', 'delay_queue', 'delay_us', 'delay_ttl')
    if ttl then
      redis.call('HSET', job, 'ttl', ttl)
    end
    redis.pcall('ZREM', deferred .. queue, id)
    delay_until(delays .. queue, hints .. queue, id, seconds(now + us))
    through[#through + 1] = id
  end
end
return { #ids, through, strays }
