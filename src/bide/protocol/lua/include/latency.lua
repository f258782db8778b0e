-- How late jobs began (l), and how long they ran (r), minute by minute for a week: l3=20 says that
-- 20 began less than 250 us * 2^3 late, and not less than half of that. The last word, of six days,
-- has all that is longer. Of a minute that is over there is a field with such words in a line; what
-- stands there twice, because the clock was set back, counts together. Of the minute under way each
-- word is a field, and `this` says which minute it is: to add costs less than to rewrite a line.
local latency = {}

local FINEST, LAST, WEEK, MINUTE, LOOK = 250, 32, 10080, 60000000, 20

function latency.of(us) return string.format('%.0f', math.floor(us / MINUTE)) end

-- Counts one more; `counted` is written at the end.
function latency.count(counted, us)
  local _, bucket = math.frexp(us / FINEST)
  bucket = bucket < 0 and 0 or bucket > LAST and LAST or bucket
  counted[bucket] = (counted[bucket] or 0) + 1
end

-- The words of the minute that is under way, as a line; and the names of all that there may be.
function latency.under_way()
  local names, words = {}, {}
  for bucket = 0, LAST do
    names[#names + 1] = 'l' .. bucket
    names[#names + 1] = 'r' .. bucket
  end
  for i, found in ipairs(redis.call('HMGET', minutes, unpack(names))) do
    if found then words[#words + 1] = names[i] .. '=' .. found end
  end
  return table.concat(words, ' '), names
end

-- A new minute has some looked at, and forgotten where they are older than a week.
local function forget(this)
  local old = {}
  for _, name in ipairs(redis.call('HRANDFIELD', minutes, LOOK)) do
    if (tonumber(name) or 0) <= this - WEEK and name ~= 'this' then old[#old + 1] = name end
  end
  if #old > 0 then redis.call('HDEL', minutes, unpack(old)) end
end

local function begin(over, this)
  if over then
    local line, names = latency.under_way()
    local before = redis.call('HGET', minutes, over)
    redis.pcall('HSET', minutes, over, before and before .. ' ' .. line or line)
    redis.call('HDEL', minutes, unpack(names))
  end
  redis.pcall('HSET', minutes, 'this', this)
  forget(tonumber(this))
end

-- What was counted is worth no outcome: hence `pcall`.
function latency.write(kind, counted)
  if not next(counted) then return end
  local this, over = latency.of(now), redis.pcall('HGET', minutes, 'this')
  if type(over) == 'table' then return end
  if over ~= this then begin(over, this) end
  for bucket, count in pairs(counted) do redis.pcall('HINCRBY', minutes, kind .. bucket, count) end
end

function latency.valid(late) return late == '' or string.find(late, '^[%d= ]+$') ~= nil end

-- What a worker reports: words `bucket=count` of how late jobs have started.
function latency.report(late)
  local counted = {}
  for bucket, count in string.gmatch(late, '(%d+)=(%d+)') do
    bucket = math.min(tonumber(bucket), LAST)
    counted[bucket] = tonumber(count)
  end
  latency.write('l', counted)
end

return latency
