-- list_due: a page of the ids of the jobs due in a stretch of time; by priority, then due time.
-- @key   meta     reads the clock's offset under test
-- @key   due      reads
-- @arg   from_us  integer  where the stretch begins
-- @arg   to_us    integer  where it ends; what is due then is not in it
-- @arg   start    integer  how many to pass over
-- @arg   count    integer  how many at most
-- @reply ok now total, then id due
-- @include clock

local reply = {'ok', clock.now(meta), 0}
local low, high = string.format('(%.0f', from_us), string.format('(%.0f', to_us)
for i = 1, #due do
  local first = redis.call('ZCOUNT', due[i], '-inf', low)
  local size = redis.call('ZCOUNT', due[i], '-inf', high) - first
  if size > 0 then
    reply[3] = reply[3] + size
    if start < size and count > 0 then
      local take = math.min(count, size - start)
      local from = first + start
      local some = redis.call('ZRANGE', due[i], from, from + take - 1, 'WITHSCORES')
      for j = 1, #some, 2 do
        reply[#reply + 1] = some[j]
        reply[#reply + 1] = tonumber(some[j + 1])
      end
      count = count - take
      start = 0
    else
      start = math.max(0, start - size)
    end
  end
end
return reply
