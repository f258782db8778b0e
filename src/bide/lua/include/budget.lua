-- The results of a queue stay within a budget of bytes (`Retention(results=...)`): when a new
-- result does not fit, the oldest go. Small results are not counted; retention bounds their number.
--
-- `sizes` has `<bytes> <id>` of each large result by when its job ended, and the field
-- `result_bytes` of `meta` their sum. A result that was removed with its job still stands here
-- until it is the oldest, and is then taken off before any other has to go.
local budget = {}

local BUDGET, MOST = 100000000, 200

-- Counts what was `added` (pairs of id and bytes), and drops what is too much: at most `MOST`, and
-- the rest by the next call. A note in the job says so. Returns how many were dropped.
function budget.add(meta, sets, noting, now, most, added)
  local bytes = tonumber(redis.call('HGET', meta, 'result_bytes')) or 0
  local sizes, dropped = {}, 0
  for i = 1, #added, 2 do
    bytes = bytes + added[i + 1]
    sizes[#sizes + 1] = now
    sizes[#sizes + 1] = string.format('%d %s', added[i + 1], added[i])
  end
  redis.call('ZADD', sets.sizes, unpack(sizes))
  for _ = 1, MOST do
    if bytes <= (most or BUDGET) then break end
    local oldest = redis.call('ZPOPMIN', sets.sizes)[1]
    local size, id = string.match(oldest or '', '^(%d+) (%S+)$')
    bytes = oldest and bytes - (tonumber(size) or 0) or 0
    if id and redis.call('HSTRLEN', sets.results, id) == tonumber(size) then
      redis.call('HDEL', sets.results, id)
      redis.call('HSET', sets.notes, id, noting.add(redis.call('HGET', sets.notes, id),
        string.format('D %.0f %s', now, size)))
      dropped = dropped + 1
    end
  end
  redis.call('HSET', meta, 'result_bytes', string.format('%.0f', math.max(bytes, 0)))
  return dropped
end

return budget
