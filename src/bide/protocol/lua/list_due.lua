-- list_due: read ids of jobs due in an interval, by priority and due time, or by due time.
-- @arg   from_us  integer  where the stretch begins
-- @arg   to_us    integer  where it ends; what is due then is not in it
-- @arg   start    integer  how many to pass over; by due time, only of those due at `from_us`
-- @arg   count    integer  how many at most; by due time, of each priority
-- @arg   by_due   integer  1 for the first by due time: of each priority in due order; else 0
-- @reply ok now total, then id due

local reply = {'ok', now, 0}
local at = string.format('%.0f', from_us)
local low, high = '(' .. at, string.format('(%.0f', to_us)
if by_due == 0 then
  reply[3] = due_page.add(reply, low, high, start, count, 'WITHSCORES')
  return reply
end
for i = 1, #due do
  local first = redis.call('ZCOUNT', due[i], '-inf', low)
  local size = redis.call('ZCOUNT', due[i], '-inf', high) - first
  local past = math.min(start, redis.call('ZCOUNT', due[i], at, at))
  local last = math.min(size, past + count)
  if past < last then
    local some = redis.call('ZRANGE', due[i], first + past, first + last - 1, 'WITHSCORES')
    for j, word in ipairs(some) do
      reply[#reply + 1] = j % 2 == 0 and tonumber(word) or word
    end
  end
  start, reply[3] = start - past, reply[3] + size
end
return reply
