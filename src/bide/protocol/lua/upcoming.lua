-- upcoming: read the jobs that are due next, over all priorities.
-- @arg   within_us  integer  how far to look ahead; 0 for no limit
-- @arg   count      integer  how many of each priority at most
-- @reply ok now, then id due, of each priority in due order

local last = within_us > 0 and string.format('%.0f', now + within_us) or '+inf'
local reply = {'ok', now}
for i = 1, #due do
  local some = redis.call('ZRANGEBYSCORE', due[i], string.format('(%.0f', now), last, 'WITHSCORES',
    'LIMIT', 0, count)
  for j = 1, #some, 2 do
    reply[#reply + 1] = some[j]
    reply[#reply + 1] = tonumber(some[j + 1])
  end
end
return reply
