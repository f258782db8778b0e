-- What was asked of a job beside its due time: a line of words `name=value`.
--
--   x=+N   it begins within N microseconds of its due time, or never
--   x=@N   it begins by N, or never
--   d=-    it waits for others; behind that, or in its place, one letter for each that holds:
--          `f` their failing does not matter, `c` nor does their being cancelled, `a` it is to run
--          only if one of them fails, and as soon as it does
--   e=N    it did not begin in time, and was cancelled at N
--   w=+N   of one that waits for others: when it is due, counted from when it is freed; or w==N
--   p=N    and its priority
--   c=id   it was cancelled, because this job that it waited for did not end as it should have
local term = {}

local ASKED = {x = '^[+@]%d+$', d = '^[-fca]+$'}
local NOTED = {e = '^%d+$', w = '^[+=]%d+$', p = '^%d$', c = '^%S+$'}
local LONGEST, VALUE = 1000, 17 -- sixteen digits, and what stands before them
local REFERENCE = 300

local function read(line, is_known)
  local count = 0
  for word in string.gmatch(line, '[^ ]+') do
    local name, value = string.match(word, '^(%l)=(%S+)$')
    local form = name and is_known(name)
    if not form or not string.find(value, form) or #value > (name == 'c' and REFERENCE or VALUE) then
      return false
    end
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

-- What a line says under a name, or nil.
function term.value(line, name)
  return line and string.match(' ' .. line, ' ' .. name .. '=(%S+)')
end

-- By when a job that is due at `due` must have begun, or nil; `due` is nil while that is not known.
function term.begins_by(line, due)
  local way, us = string.match(term.value(line, 'x') or '', '^([+@])(%d+)')
  if not us or (way == '+' and not due) then return nil end
  return way == '+' and due + tonumber(us) or tonumber(us)
end

return term
