-- How much one call reads. Bodies are large or small as their callers like, and a call that read some
-- hundred large ones would keep the server from its other work. So `enqueue` marks a queue that ever
-- had a large body, and there sizes are asked for before bodies are read.
local weigh = {LARGE = 16000}

local BYTES = 2000000

-- What a call may read yet; the first body is always read.
function weigh.room() return {left = BYTES, is_new = true} end

-- Drops those of these ids for whose jobs' bodies there is no room left; true if there are any.
function weigh.cut(room, jobs, ids)
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
function weigh.add(room, ...)
  for _, value in ipairs({...}) do
    room.left = room.left - #(value or '')
  end
end

return weigh
