-- What was asked of a job beside its due time: a line of words `name=value`.
--
--   x=+N   it begins within N microseconds of its due time, or never
--   x=@N   it begins by N, or never
--   e=N    it did not, and was cancelled at N
--   g=NAME it is of this group
--   n=N    of which N may run at once, as it was asked with this job
local term = {}

local ASKED = {x = '^[+@]%d+$', g = '^[^%s%c{}]+$', n = '^[1-9]%d*$'}
local NOTED = {e = '^%d+$'}
local LONGEST, VALUE = 1000, 17 -- sixteen digits, and what stands before them
local VALUES = {g = 128, n = 6}

local function read(line, is_known)
  local count = 0
  for word in string.gmatch(line, '[^ ]+') do
    local name, value = string.match(word, '^(%l)=(%S+)$')
    local form = name and is_known(name)
    if not form or not string.find(value, form) or #value > (VALUES[name] or VALUE) then return false end
    count = count + 1
  end
  return count > 0 and #line <= LONGEST
end

-- Whether a caller may ask this.
function term.valid(line)
  return read(line, function(name) return ASKED[name] end)
end

-- Whether this can stand in the hash.
function term.is_one(line)
  return read(line, function(name) return ASKED[name] or NOTED[name] end)
end

-- By when a job that is due at `due` must have begun, or nil.
function term.begins_by(line, due)
  local way, us = string.match(' ' .. (line or ''), ' x=([+@])(%d+)')
  if not us then return nil end
  return way == '+' and due + tonumber(us) or tonumber(us)
end

return term
