-- cancel: cancel jobs before they run; ask running jobs to stop.
-- @arg   running    integer  1 to ask running jobs to stop, 0 to skip them
-- @rest  id
-- @reply ok now, then per job: ok | asked | held | cancelled | active | completed | failed | gone

-- held: its worker returns it, because it is not due yet; or the call has done enough. Ask again

local TELL = 100

local reply, done = {'ok', now}, {}
local limits = retention.limits()
event.open(limits.listened)
for i = rest, #ARGV do
  local id = ARGV[i]
  local level, at = locate.take_due(id)
  local word = 'ok'
  if deps_edges.forgotten >= deps_edges.MOST and redis.call('ZSCORE', blocked, id) then
    word = 'held'
  elseif level then
    local grp = level == group.GROUPED and group.leave(at, id)
    finish.cancel(id, grp and 10 - grp.priority or level, 'cancel')
    done[#done + 1] = id
  elseif redis.call('ZREM', blocked, id) == 1 then
    deps.cancel(id, redis.call('HGET', terms, id), 'cancel')
    done[#done + 1] = id
  else
    word = locate.elsewhere(id)
    if word == 'active' and locate.recall(id) then
      word = 'held'
    elseif word == 'active' and running == 1 then
      redis.call('ZADD', asked, now, id)
      redis.pcall('PUBLISH', asked, id) -- may be lost, as in `notify_waiters`
      word = 'asked'
    end
  end
  reply[#reply + 1] = word
end
group.turns()
if #done > 0 then
  finish.tell(limits.edges, done, TELL)
  retention.trim(limits, 3, #done + 64)
  finish.close()
end
return reply
