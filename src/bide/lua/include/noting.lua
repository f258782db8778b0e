-- What happened to a job, a line each, oldest first:
--
--   E attempt started ended worker error    an attempt that raised, the error as JSON
--   C attempt started ended worker          an attempt whose lease ended without an outcome
--   L at text                               a line that the job logged, as JSON
--   P at text                               how far it is, as JSON: only the latest
--
-- Of each kind the newest are kept, up to a number of lines and of bytes.
local noting = {}

local LINES = {E = 10, C = 10, L = 100, P = 1}
local BYTES = {E = 49152, C = 4096, L = 32768, P = 4096}

-- The old notes (or false) and new ones, bounded.
function noting.add(old, new)
  local all = old and old .. '\n' .. new or new
  local lines, lines_left, bytes_left, kept = {}, {}, {}, {}
  for line in string.gmatch(all, '[^\n]+') do lines[#lines + 1] = line end
  for kind, count in pairs(LINES) do
    lines_left[kind], bytes_left[kind] = count, BYTES[kind]
  end
  for i = #lines, 1, -1 do
    local kind = string.sub(lines[i], 1, 1)
    local left = lines_left[kind] or 0
    local newest = left == LINES[kind]
    if left > 0 and (newest or #lines[i] <= bytes_left[kind]) then
      lines_left[kind] = left - 1
      bytes_left[kind] = bytes_left[kind] - #lines[i]
      kept[#kept + 1] = lines[i]
    else
      lines_left[kind] = 0 -- no older line of this kind after a gap
    end
  end
  for i = 1, math.floor(#kept / 2) do
    kept[i], kept[#kept + 1 - i] = kept[#kept + 1 - i], kept[i]
  end
  return table.concat(kept, '\n')
end

function noting.error(f, now, data)
  return string.format('E %d %.0f %.0f %s ', f.attempt, f.started, now, f.worker) .. data
end

function noting.crash(f, now)
  return string.format('C %d %.0f %.0f %s', f.attempt, f.started, now, f.worker)
end

return noting
