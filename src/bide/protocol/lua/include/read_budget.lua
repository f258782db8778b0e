-- The maximum that one call reads: some hundred large bodies would block the server. So `enqueue`
-- marks a queue that has ever had a large body, and there sizes are read before bodies.
local read_budget = {LARGE = 16000}

local BYTES = 2000000

-- What a call may read yet; the first body is always read.
function read_budget.room() return {left = BYTES, is_new = true} end

-- Drops those of these ids for whose jobs' bodies there is no room left; true if there are any.
function read_budget.cut(room, jobs, ids)
  for i, id in ipairs(ids) do
    room.left = room.left - redis.call('HSTRLEN', jobs, id)
    if room.left < 0 and not room.is_new then
      for last = #ids, i, -1 do ids[last] = nil end
      return true
    end
    room.is_new = false
  end
  return false
end

-- Counts what was read; false is nothing.
function read_budget.add(room, ...)
  for _, value in ipairs({...}) do
    room.left = room.left - #(value or '')
  end
end

-- Reads on in a hash as HSCAN does, about `most` of its values, and no more than there is room for:
-- as few at a time as the server gives, because sizes come only with values. A caller that writes
-- them again asks for a `share` of the room.
function read_budget.scan(hash, cursor, most, share)
  local room, found = read_budget.room(), {}
  room.left = room.left * (share or 1)
  for _ = 1, most do
    local page = redis.call('HSCAN', hash, cursor, 'COUNT', 1)
    cursor = page[1]
    for _, text in ipairs(page[2]) do
      found[#found + 1] = text
      read_budget.add(room, text)
    end
    if cursor == '0' or room.left < 0 or #found >= 2 * most then break end
  end
  return {cursor, found}
end

return read_budget
