-- Open the gate: jobs whose dependencies are met have their delay from now.
-- KEYS: the gate's list
-- ARGV: what a job's key, a sorted set of delayed jobs and a channel of wake-up messages begin
--       with; the gate's name; how many jobs to pass over, and how many to read at most; RQ's
--       registry of jobs whose dependencies are met, of the gate
-- Reply: how many were read; ids that were let through; ids of no job that waits for its delay; of
--        each that stays, the key of its queue's sorted set, which another program uses
--
-- RQ's worker has pushed each to the gate's list because the job's origin says so. Here the job
-- gets its own queue as origin again. It leaves the list last: what is refused on the way stays
-- there.
local FAR = 4000000000000000 -- microseconds: more than a century
local list = KEYS[1]
local jobs, delays, wakeups, gate = unpack(ARGV, 1, 4)
local first, limit, ready = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]

-- RQ 3 pushes a job to the list some time after its dependencies are met. The jobs of a worker that
-- died in between stay in this registry; no worker cleans it, because none reads the gate's list.
local met = redis.pcall('ZRANGE', ready, 0, limit - 1)
for _, id in ipairs(met.err and {} or met) do
  local status = redis.pcall('HGET', jobs .. id, 'status')
  if status == 'ready_to_enqueue' then redis.call('RPUSH', list, id) end
  redis.call('ZREM', ready, id)
end

local ids = redis.call('LRANGE', list, first, first + limit - 1)
local fields = {}
for i, id in ipairs(ids) do
  fields[i] = redis.pcall(
    'HMGET', jobs .. id, 'status', 'origin', 'enqueued_at', 'delay_queue', 'delay_us', 'delay_ttl',
    'delay_key', 'delay_limit'
  )
  -- Of a job whose key holds something else, nothing is left; what may not be read is not gone.
  if fields[i].err and not string.find(fields[i].err, 'WRONGTYPE', 1, true) then
    return redis.error_reply(fields[i].err)
  end
end
redis.call('LTRIM', list, 0, -1) -- it changes nothing; after it, a full server lets the rest pass
local now = clock()
local through, strays, stay = {}, {}, {}
for i, id in ipairs(ids) do
  local job = jobs .. id
  local status, origin, enqueued, queue, us, ttl, set, limited = unpack(fields[i], 1, 8)
  us = tonumber(us)
  if us then us = us == us and math.max(-FAR, math.min(us, FAR)) end -- not inf, and not nan
  -- As one says that was read before, and saved.
  if fields[i].err or not at_gate(status) or origin ~= gate or not queue or not us then
    redis.call('LREM', list, 1, id)
    strays[#strays + 1] = id
  else
    local delayed = set or delays .. queue
    local kind = redis.call('TYPE', delayed).ok
    if kind ~= 'zset' and kind ~= 'none' then
      stay[#stay + 1] = delayed
    else
      delay_until(delayed, wakeups .. queue, id, now + us, now)
      redis.call('HSET', job, 'status', 'scheduled', 'origin', queue, 'delayed_on', queue)
      if set then
        redis.call('HSET', job, 'delayed_in', set)
      end
      if enqueued then
        redis.call('HSET', job, 'delay_gated', enqueued)
      end
      if ttl then
        redis.call('HSET', job, 'ttl', ttl)
      end
      if limited then
        redis.call('HSET', job, 'rate_limit_key', limited)
      end
      redis.call(
        'HDEL', job, 'enqueued_at', 'delay_queue', 'delay_us', 'delay_ttl', 'delay_key',
        'delay_limit'
      )
      redis.call('PERSIST', job) -- its ttl, if one was saved, began when it came here
      redis.call('PERSIST', job .. ':dependents')
      redis.call('PERSIST', jobs .. ':' .. id .. ':dependencies') -- RQ has two colons there
      redis.call('LREM', list, 1, id)
      through[#through + 1] = id
    end
  end
end
return { #ids, through, strays, stay }
