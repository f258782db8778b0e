-- How late jobs began, and how long they ran, minute by minute for a week. Of each minute there is
-- a line of words: l3=20 says that 20 began less than 250 us * 2^3 late, and not less than half of
-- that; r3=20 the same of how long they ran. The last word, of six days, has all that is longer.
local minute = {}

local FINEST, LAST, WEEK, MINUTE, LOOK = 250, 32, 10080, 60000000, 20

-- Counts one more; `counted` is written at the end.
function minute.count(counted, kind, us)
  local _, bucket = math.frexp(us / FINEST)
  local word = kind .. (bucket < 0 and 0 or bucket > LAST and LAST or bucket)
  counted[word] = (counted[word] or 0) + 1
end

-- A new minute has some looked at, and forgotten where they are older than a week.
local function forget(minutes, this)
  local old = {}
  for _, name in ipairs(redis.call('HRANDFIELD', minutes, LOOK)) do
    if (tonumber(name) or 0) <= this - WEEK then old[#old + 1] = name end
  end
  if #old > 0 then redis.call('HDEL', minutes, unpack(old)) end
end

-- What was counted is worth no outcome: hence `pcall`.
function minute.write(minutes, now, counted)
  if not next(counted) then return end
  local this = math.floor(now / MINUTE)
  local name = string.format('%.0f', this)
  local line = redis.pcall('HGET', minutes, name)
  if type(line) == 'string' then
    for word, count in string.gmatch(line, '(%l%d+)=(%d+)') do
      counted[word] = (counted[word] or 0) + tonumber(count)
    end
  elseif line then
    return
  else
    forget(minutes, this)
  end
  local words = {}
  for word, count in pairs(counted) do words[#words + 1] = string.format('%s=%.0f', word, count) end
  table.sort(words) -- so that the same counts are the same line
  redis.pcall('HSET', minutes, name, table.concat(words, ' '))
end

return minute
