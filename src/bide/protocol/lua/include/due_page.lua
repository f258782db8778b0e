-- A page of the ids of due jobs, by priority, then due time.
local due_page = {}

-- Adds to a reply those behind `low` (nil: from the first on) up to `high`, both as ZCOUNT takes
-- them; each with its due time where the last argument is WITHSCORES. How many there are in all.
function due_page.add(reply, low, high, start, count, ...)
  local total = 0
  for i = 1, #due do
    local first = low and redis.call('ZCOUNT', due[i], '-inf', low) or 0
    local size = redis.call('ZCOUNT', due[i], '-inf', high) - first
    total = total + size
    if start < size and count > 0 then
      local take, from = math.min(count, size - start), first + start
      for j, word in ipairs(redis.call('ZRANGE', due[i], from, from + take - 1, ...)) do
        reply[#reply + 1] = ... and j % 2 == 0 and tonumber(word) or word
      end
      count, start = count - take, 0
    else
      start = math.max(0, start - size)
    end
  end
  return total
end

return due_page
