-- reschedule: give unclaimed jobs another due time.
-- @arg   at         text     +N microseconds from now, or =N
-- @arg   promote    integer  1 to make jobs due that are not yet, also blocked ones; else 0
-- @rest  id
-- @reply ok now, then per job: ok due | held 0 | its state 0 | gone 0
-- @include due_time event group locate move wakeup

-- held: its worker returns it, because it is not due yet; ask again

if not due_time.valid(at) then return redis.error_reply('BADARG reschedule at') end
local us = due_time.us(at)
local promotes = promote == 1
local reply, moved, changed = {'ok', now}, false, {}
for i = rest, #ARGV do
  local id = ARGV[i]
  local level, was = locate.due(id)
  local word, due_us = 'ok', us
  if level then
    if promotes then due_us = math.min(was, us) end -- one that waits keeps its place
    if not promotes or was > us then
      move.job(id, level, was, us, not promotes)
      moved = true
      if was ~= us then changed[#changed + 1] = id end
    end
  elseif redis.call('ZSCORE', blocked, id) then
    local line = redis.call('HGET', terms, id) or 'd=-'
    line = string.gsub(line, ' w=%S+', '') .. ' w=' .. at
    redis.call('HSET', terms, id, line)
    if promotes then
      deps.free(id, line)
      deps_edges.forget(id)
      moved, changed[#changed + 1] = true, id
    end
  else
    word, due_us = locate.elsewhere(id), 0
    if word == 'active' and locate.recall(id) then word = 'held' end
  end
  reply[#reply + 1] = word
  reply[#reply + 1] = due_us
end
group.turns()
if #changed > 0 then
  event.tell('rescheduled', promotes and 'promote' or 'reschedule', changed, us)
end
if moved then wakeup.due(us) end
return reply
