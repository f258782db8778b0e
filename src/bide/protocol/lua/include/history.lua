-- The notes of a job, one line each, oldest first:
--
--   E attempt started ended worker error    an attempt that raised, the error as JSON
--   C attempt started ended worker          an attempt whose lease ended without an outcome
--   L at text                               a line that the job logged, as JSON
--   P at text                               how far it is, as JSON: only the latest
--   R at from to                            it was rescheduled: from and to which due time
--
-- Of each kind the newest are kept, up to a number of lines and of bytes.
local history = {}

local LINES = {E = 10, C = 10, L = 100, P = 1, R = 5}
local BYTES = {E = 49152, C = 4096, L = 32768, P = 4096, R = 500}
local KINDS = {}
for kind in pairs(LINES) do KINDS[string.byte(kind)] = kind end

-- The old notes (or false) and new ones, bounded. Lines are found and dropped where they are, not
-- taken apart, because a job may have 90 KB of them and a call may add to those of many jobs.
function history.add(old, new)
  local first = not old and KINDS[string.byte(new)]
  if first and #new <= BYTES[first] and not string.find(new, '\n', 1, true) then return new end
  local all = old and old .. '\n' .. new or new
  local starts, n, at = {}, 0, 1
  repeat
    n = n + 1
    starts[n] = at
    local stop = string.find(all, '\n', at, true)
    at = stop and stop + 1
  until not at
  starts[n + 1] = #all + 2
  local lines_left, bytes_left = {}, {}
  for kind, count in pairs(LINES) do lines_left[kind], bytes_left[kind] = count, BYTES[kind] end
  local dropped = {}
  for i = n, 1, -1 do
    local kind = KINDS[string.byte(all, starts[i])]
    local left, size = lines_left[kind] or 0, starts[i + 1] - starts[i] - 1
    if left > 0 and (left == LINES[kind] or size <= bytes_left[kind]) then
      lines_left[kind] = left - 1
      bytes_left[kind] = bytes_left[kind] - size
    else
      if kind then lines_left[kind] = 0 end -- no older line of this kind after a gap
      dropped[#dropped + 1] = i
    end
  end
  if #dropped == 0 then return all end
  local parts, from = {}, 1
  for i = #dropped, 1, -1 do
    local line = dropped[i]
    if starts[line] > from then parts[#parts + 1] = string.sub(all, from, starts[line] - 2) end
    from = starts[line + 1]
  end
  if from <= #all then parts[#parts + 1] = string.sub(all, from) end
  return table.concat(parts, '\n')
end

function history.error(rec, data)
  return string.format('E %d %.0f %.0f %s ', rec.attempt, rec.started, now, rec.worker) .. data
end

function history.note(id, line)
  redis.call('HSET', notes, id, history.add(redis.call('HGET', notes, id), line))
end

-- From when to when a job was moved. Of many with long notes, which take time to read, a call adds
-- to the first: `room.left` bytes of them.
function history.move(room, id, from, to)
  room.left = room.left - redis.call('HSTRLEN', notes, id)
  if room.left < 0 then return end
  history.note(id, string.format('R %.0f %.0f %.0f', now, from, to))
end

return history
