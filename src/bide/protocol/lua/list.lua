-- list: read a page of the ids in a state; due jobs by priority and due time, others newest first.
-- @arg   state      text     one of `bide.model.job`
-- @arg   start      integer  how many to pass over
-- @arg   count      integer  how many at most
-- @reply ok now, then ids

local reply = {'ok', now}
local others = {active = active, completed = completed, failed = failed, cancelled = cancelled,
  blocked = blocked}
if state == 'waiting' then
  due_page.add(reply, nil, now, start, count)
elseif state == 'delayed' then
  due_page.add(reply, now, '+inf', start, count)
elseif not others[state] then
  return redis.error_reply('BADARG list state')
elseif count > 0 then
  for _, id in ipairs(redis.call('ZREVRANGE', others[state], start, start + count - 1)) do
    reply[#reply + 1] = id
  end
end
return reply
