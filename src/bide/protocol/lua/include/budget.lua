-- The large results of a queue stay within a budget of bytes (`Retention(results=...)`): if a
-- result does not fit, the oldest results are dropped. `retention` subtracts results that are
-- removed with their jobs. In `meta`, `result_bytes` has the sum, and `results_from` the completion
-- time from which results have not been read yet. `results_over` exists while the results exceed
-- the budget. Then settles without large results continue the search too, because a few large
-- results may come after many small ones.
local budget = {}

local BUDGET, MOST, FAR = 100000000, 200, 9000000000000000

-- Counts `bytes` of new results, and drops the oldest that do not fit: it looks at as many jobs as
-- have completed now, `count`, and at `MOST` more. Spares those that other jobs need. Returns how
-- many were dropped; the record of each job says so.
function budget.add(has_edges, bytes, count)
  local set = redis.call('HMGET', meta, 'result_bytes', 'result_budget', 'results_from',
    'results_over')
  local most, from = tonumber(set[2]) or BUDGET, set[3]
  if from and not string.find(from, '^%(?%d+$') then from = nil end
  local sum = tonumber(set[1])
  if sum and sum >= 0 and sum < FAR then bytes = bytes + sum end -- not nan
  if bytes <= most then
    if set[4] then redis.call('HDEL', meta, 'results_over') end
    redis.call('HSET', meta, 'result_bytes', string.format('%.0f', bytes))
    return 0
  end
  local limit, dropped, spared, last = count + MOST, 0, false, nil
  local found = redis.call('ZRANGEBYSCORE', completed, from or '-inf', '+inf', 'WITHSCORES',
    'LIMIT', 0, limit)
  for i = 1, #found, 2 do
    if bytes <= most then break end
    local id, size = found[i], redis.call('HSTRLEN', results, found[i])
    last = found[i + 1]
    if size >= retention.LARGE then
      if has_edges and deps.is_held(id) ~= false then
        spared = true
      else
        redis.call('HDEL', results, id)
        local line = redis.call('HGET', run, id)
        local head, ended = string.match(line or '', '^(.*)( %d+e)$')
        head = (head or line or '') .. string.format(' %dd', size)
        if line then redis.call('HSET', run, id, head .. (ended or '')) end
        bytes, dropped = bytes - size, dropped + 1
      end
    end
  end
  if bytes > most and #found < 2 * limit then
    -- It has come to the end, and begins again; if it had begun there, nothing large is left.
    redis.call('HDEL', meta, 'results_from', 'results_over')
    if not from and not spared then bytes = 0 end
  elseif last then
    -- All may have one score: then the next call continues behind it, not at the same jobs again.
    local behind = bytes > most and found[2] == last and '(' or ''
    redis.call('HSET', meta, 'results_from', behind .. last)
    if bytes > most then redis.call('HSET', meta, 'results_over', 1) end
  end
  redis.call('HSET', meta, 'result_bytes', string.format('%.0f', math.max(bytes, 0)))
  return dropped
end

return budget
