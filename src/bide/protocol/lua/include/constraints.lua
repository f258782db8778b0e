-- The constraints of a job besides its due time: a line of words `name=value`.
--
--   x=+N   it begins within N microseconds of its due time, or never
--   x=@N   it begins by N, or never
--   e=N    it did not begin in time, and was cancelled at N
--   g=NAME it is of this group
--   n=N    of which N may run at once, as it was asked with this job
--   k=...  the key under which calls are deduplicated (`dedup`), always followed by how:
--   f=uk,f it is unique: others are kept out (k), or replace it (r), or are rejected (x), until it
--          has ended (f) or begun (s), or for so many microseconds
--   f=dQ,M it is put off until no call has come for Q microseconds, and by M at most (0: any time)
--   f=tN,P N of them in P microseconds
--   f=gQ,M,S  as d, and the items of up to S calls are run together
--   f=gQ,M,S,E  this call ends such a list: it is due within E microseconds
--   d=-    it depends on other jobs, and is not deduplicated; it runs once all have completed
--   d=-e   it runs once all have ended in any way
--   d=-f   it runs as soon as one has failed or was cancelled
--   w=+N   of one that waits for others: when it is due, counted from when it is freed; or w==N
--   p=N    of such a one: its priority
--   c=id   it was cancelled, because this job that it waited for did not end as it should have
local constraints = {}

local ASKED = {x = {'^[+@]%d+$'}, g = {'^[^%s%c{}]+$'}, n = {'^[1-9]%d*$'}, d = {'^%-[ef]?$'},
  k = {'^%S+$'},
  f = {'^u[krx],[fs]$', '^u[krx],%d+$', '^d%d+,%d+$', '^t[1-9]%d*,[1-9]%d*$',
    '^g%d+,%d+,[1-9]%d*$', '^g%d+,%d+,[1-9]%d*,%d+$'}}
local NOTED = {e = {'^%d+$'}, w = {'^[+=]%d+$'}, p = {'^%d$'}, c = {'^%S+$'}}
-- With a key, or with a parent, and all that may stand beside these, there is room to spare.
local LONGEST, VALUE = 1200, {g = 128, n = 6, k = 800, f = 60, c = 300}

-- Whether a caller may ask this; or, where it `is_stored`, whether it can stand in the hash.
function constraints.valid(line, is_stored)
  local count = 0
  for word in string.gmatch(line, '[^ ]+') do
    local name, value = string.match(word, '^(%l)=(%S+)$')
    local fits = false
    for _, form in ipairs(ASKED[name] or is_stored and NOTED[name] or {}) do
      fits = fits or string.find(value, form) ~= nil
    end
    if not fits or #value > (VALUE[name] or 17)
      or (name == 'f' and string.find(value, string.rep('%d', 17))) then
      return false
    end
    count = count + 1
  end
  local _, keys = string.gsub(' ' .. line, ' k=', '')
  local _, ways = string.gsub(' ' .. line, ' f=', '')
  return count > 0 and #line <= LONGEST and keys == ways and keys <= 1
    and (keys == 0 or (string.find(line, 'k=%S+ f=') ~= nil
      and not string.find(' ' .. line, ' d=', 1, true)))
end

-- What a line says under a name, or nil.
function constraints.value(line, name)
  return line and string.match(' ' .. line, ' ' .. name .. '=(%S+)')
end

-- The due set of a job that is not due yet: by the priority that its line has.
function constraints.level(line) return 10 - (constraints.value(line, 'p') or 5) end

-- By when a job that is due at `due` must have begun, or nil; `due` is nil while that is not known.
function constraints.begins_by(line, due)
  local way, us = string.match(constraints.value(line, 'x') or '', '^([+@])(%d+)')
  if not us or (way == '+' and not due) then return nil end
  return way == '+' and due + tonumber(us) or tonumber(us)
end

-- Notes by when a job that waits and is due at `due` must have begun; nil where it need not.
function constraints.expires(id, line, due)
  local by = constraints.begins_by(line, due)
  if by then redis.call('ZADD', expiring, by, id) else redis.call('ZREM', expiring, id) end
  return by
end

return constraints
