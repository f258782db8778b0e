-- Retention: finished jobs are kept up to an age and a count, and removed in bounded pieces. What
-- finished in the last 15 s is spared, so that a caller that repeats itself after a lost reply (for
-- 10 s at most) still finds the record that makes the repeat harmless. A job that is to be kept for
-- a time of its own is scored as if it had finished so much later or earlier that its turn comes
-- when that time is over; its record says when it did finish.
local retention = {LARGE = 2000, SPARE = 15000000} -- LARGE: bytes of a result that is counted

local SPARE = retention.SPARE
local SETS = {completed, failed, cancelled}
local SIX = '^%d+ %d+ %d+ %d+ %d+ %d+$'
local DEFAULT = '10000 86400000000 10000 2592000000000 10000 86400000000'

-- Count and age of completed, failed and cancelled jobs: six numbers; whether any job was ever kept
-- for a time of its own; and what who asks needs, too: who listens (`event`), whether any job had
-- constraints, or a group, or waited for others, and whether there are limits (`rate_limit`).
function retention.limits()
  local set = redis.call('HMGET', meta, 'retention', 'own', 'listened', 'terms', 'limited',
    'groups', 'edges', 'results_over')
  local limits = {own = set[2], listened = set[3], constraints = set[4], limited = set[5],
    groups = set[6], edges = set[7], over = set[8]}
  local stored = set[1]
  if not stored or not string.find(stored, SIX) then stored = DEFAULT end
  for number in string.gmatch(stored, '%d+') do limits[#limits + 1] = tonumber(number) end
  return limits
end

-- Jobs that are to be kept for longer stand behind others, where the count must reach them too. No
-- range of scores says which of them ended long ago: some are drawn, and of these go the first.
local function find_long(set, excess, limit, found)
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
local function put_off(set, id)
  local line = redis.call('HGET', run, id)
  if line and not string.find(line, ' %d+e$') then
    redis.call('HSET', run, id, line .. string.format(' %.0fe', redis.call('ZSCORE', set, id)))
    redis.call('HSETNX', meta, 'own', 1)
  end
  redis.call('ZADD', set, 'GT', now, id)
end

-- `kind`: 1 for completed, 2 for failed, 3 for cancelled. A job that others need yet goes to the
-- end of the line. One of which it cannot be said yet stays where it is. A cancelled one may hold a
-- key for a time; nothing else is about to free that any more.
function retention.trim(limits, kind, limit)
  local set = SETS[kind]
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
  if limits.own and #found < excess then find_long(set, excess, limit, found) end
  if #found == 0 then return end
  local ids = {}
  local lines = limits.own and redis.call('HMGET', run, unpack(found))
  for i, id in ipairs(found) do
    local ended = lines and lines[i] and tonumber(string.match(lines[i], ' (%d+)e$'))
    if not ended or ended <= spared then
      local is_held = limits.edges and deps.is_held(id)
      if is_held then
        put_off(set, id)
      elseif is_held == false then
        ids[#ids + 1] = id
      end
    end
  end
  if #ids == 0 then return end
  redis.call('ZREM', set, unpack(ids))
  if kind == 3 and limits.constraints then dedup_keys.free(ids) end
  retention.forget(ids, limits.constraints)
end

-- Removes what is stored of jobs; `has_constraints`: whether any job of the queue had constraints.
function retention.forget(ids, has_constraints)
  retention.uncount(ids)
  for _, hash in ipairs({jobs, run, results, notes, has_constraints and terms or nil}) do
    redis.call('HDEL', hash, unpack(ids))
  end
end

-- Results are about to be removed: the sum of the large ones (`budget`) becomes less.
function retention.uncount(ids)
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
