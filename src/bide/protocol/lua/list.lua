-- list: a page of the ids in one state; due jobs by priority, then due time; others newest first.
-- @key   meta       reads the clock's offset under test
-- @key   due        reads
-- @key   active     reads
-- @key   completed  reads
-- @key   failed     reads
-- @key   cancelled  reads
-- @key   blocked    reads
-- @arg   state      text     one of `bide.model.job`
-- @arg   start      integer  how many to pass over
-- @arg   count      integer  how many at most
-- @reply ok now, then ids
-- @include clock

local now = clock.now(meta)
local reply = {'ok', now}
local function add(ids)
  for i = 1, #ids do reply[#reply + 1] = ids[i] end
end

local finished = {active = active, completed = completed, failed = failed, cancelled = cancelled,
  blocked = blocked}
if finished[state] then
  if count > 0 then add(redis.call('ZREVRANGE', finished[state], start, start + count - 1)) end
elseif state == 'delayed' or state == 'waiting' then
  for i = 1, #due do
    local waiting = redis.call('ZCOUNT', due[i], '-inf', now)
    local first, size = 0, waiting
    if state == 'delayed' then
      first, size = waiting, redis.call('ZCARD', due[i]) - waiting
    end
    if start < size and count > 0 then
      local take = math.min(count, size - start)
      add(redis.call('ZRANGE', due[i], first + start, first + start + take - 1))
      count = count - take
      start = 0
    else
      start = math.max(0, start - size)
    end
  end
else
  return redis.error_reply('BADARG list state')
end
return reply
