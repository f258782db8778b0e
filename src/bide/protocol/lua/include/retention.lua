-- Retention: finished jobs are kept up to an age and a count, and removed in bounded pieces.
--
-- What finished in the last 15 s is spared, so that a caller that repeats itself after a lost
-- reply (for 10 s at most) still finds the record that makes the repeat harmless. A job that is to
-- be kept for a time of its own is scored as if it had finished so much later or earlier that its
-- turn comes when that time is over; its record says when it did finish.
local retention = {LARGE = 2000} -- bytes from which on a result is counted

local SPARE = 15000000
local SIX = '^%d+ %d+ %d+ %d+ %d+ %d+$'
local DEFAULT = '10000 86400000000 10000 2592000000000 10000 86400000000'

-- Count and age of completed, failed and cancelled jobs: six numbers; whether any job of the queue
-- was ever kept for a time of its own; and, because who asks needs it too, who listens (`event`),
-- and whether a job ever had terms, or a group, or waited for others, and whether it has limits
-- (`rate_limit`).
function retention.limits(meta)
  local set = redis.call('HMGET', meta, 'retention', 'own', 'listened', 'terms', 'limited',
    'groups', 'edges', 'results_over')
  local limits = {own = set[2], listened = set[3], terms = set[4], limited = set[5],
    groups = set[6], edges = set[7], over = set[8]}
  local stored = set[1]
  if not stored or not string.find(stored, SIX) then stored = DEFAULT end
  for number in string.gmatch(stored, '%d+') do limits[#limits + 1] = tonumber(number) end
  return limits
end

-- The score of a job that finishes now and is to be kept for `keep`, where others are for `age`.
function retention.score(now, keep, age)
  return now + math.max(keep, SPARE) - math.max(age, SPARE)
end

-- Jobs that are to be kept for longer than others stand behind them, where the count must reach
-- them too. How many there are, and which of them ended long ago, no range of scores says: some are
-- drawn, each time others, and of these go the first.
function retention.find_long(set, now, excess, limit, found)
  local drawn = redis.call('ZRANDMEMBER', set, limit, 'WITHSCORES')
  local long = {}
  for i = 1, #drawn, 2 do
    local score = tonumber(drawn[i + 1])
    if score > now then long[#long + 1] = {score, drawn[i]} end
  end
  table.sort(long, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)
  for i = 1, math.min(#long, excess - #found) do found[#found + 1] = long[i][2] end
end

-- Moves a job to the end of the line; its record says when it did finish.
function retention.put_off(meta, set, run, now, id)
  local line = redis.call('HGET', run, id)
  if line and not string.find(line, ' %d+e$') then
    redis.call('HSET', run, id, line .. string.format(' %.0fe', redis.call('ZSCORE', set, id)))
    redis.call('HSETNX', meta, 'own', 1)
  end
  redis.call('ZADD', set, 'GT', now, id)
end

-- `kind`: 1 for completed, 2 for failed, 3 for cancelled. `stores`: every hash with a field per
-- job; the second holds the run records. `held`: says of an id whether others need the job yet;
-- such a job goes to the end of the line. One of which it cannot say that yet (nil) stays where it
-- is. `tidy`: is told which are removed, before anything of them is.
function retention.trim(meta, set, stores, now, limits, kind, limit, held, tidy)
  local count, age_us = limits[2 * kind - 1], limits[2 * kind]
  local excess = redis.call('ZCARD', set) - count
  local oldest = redis.call('ZRANGE', set, 0, 0, 'WITHSCORES')
  if not oldest[2] then return end
  local spared, aged = now - SPARE, now - math.max(age_us, SPARE)
  local first = tonumber(oldest[2])
  if first > aged and (excess <= 0 or (first > spared and not limits.own)) then return end
  -- Asked for without scores, which a server takes long to print: all that are too old; and where
  -- these are fewer than are too many, the oldest that are.
  local found = redis.call('ZRANGEBYSCORE', set, '-inf', aged, 'LIMIT', 0, limit)
  if #found < math.min(excess, limit) then
    found = redis.call('ZRANGEBYSCORE', set, '-inf', spared, 'LIMIT', 0, math.min(excess, limit))
  end
  if limits.own and #found < excess then retention.find_long(set, now, excess, limit, found) end
  if #found == 0 then return end
  local ids = {}
  local lines = limits.own and redis.call('HMGET', stores[2], unpack(found))
  for i, id in ipairs(found) do
    local ended = lines and lines[i] and tonumber(string.match(lines[i], ' (%d+)e$'))
    if not ended or ended <= spared then
      local is_held = false
      if held then is_held = held(id) end
      if is_held then
        retention.put_off(meta, set, stores[2], now, id)
      elseif is_held == false then
        ids[#ids + 1] = id
      end
    end
  end
  if #ids == 0 then return end
  redis.call('ZREM', set, unpack(ids))
  if tidy then tidy(ids) end
  retention.forget(meta, stores, ids)
end

-- The third of `stores` holds the results.
function retention.forget(meta, stores, ids)
  retention.uncount(meta, stores[3], ids)
  for i = 1, #stores do redis.call('HDEL', stores[i], unpack(ids)) end
end

-- Results are about to be removed: the sum of the large ones (`budget`) becomes less.
function retention.uncount(meta, results, ids)
  local bytes = tonumber(redis.call('HGET', meta, 'result_bytes'))
  if not bytes then return end
  local left = bytes
  for _, id in ipairs(ids) do
    local size = redis.call('HSTRLEN', results, id)
    if size >= retention.LARGE then left = left - size end
  end
  if left <= 0 then
    redis.call('HDEL', meta, 'result_bytes', 'results_from', 'results_over')
  elseif left < bytes then
    redis.call('HSET', meta, 'result_bytes', string.format('%.0f', left))
  end
end

return retention
