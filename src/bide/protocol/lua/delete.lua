-- delete: delete jobs that no worker holds, with all their data.
-- @arg   states   text   of the jobs that are deleted; 'waiting' stands for all that have not begun
-- @rest  id
-- @reply ok, then per job: ok | held | its state | gone

-- held: its worker returns it, because it is not due yet; or the call has done enough. Ask again

local TELL = 100

local reply, done = {'ok'}, {}
local unbegun = string.find(states, 'waiting', 1, true)
local awaited = 0 -- parents of those that are to be deleted
for i = rest, #ARGV do
  local id = ARGV[i]
  local word = 'ok'
  local is_blocked = unbegun and redis.call('ZSCORE', blocked, id)
  if is_blocked and awaited >= deps_edges.MOST then
    word = 'held'
  elseif is_blocked then
    redis.call('ZREM', blocked, id)
    awaited = awaited + deps_edges.awaited(id)[1]
    done[#done + 1] = id
  else
    local level, at
    if unbegun then level, at = locate.take_due(id) end
    if level == group.GROUPED then group.leave(at, id) end
    if level or locate.take_ended(id, states) then
      done[#done + 1] = id
    else
      word = locate.state(id)
      if word == 'active' and unbegun and locate.recall(id) then word = 'held' end
    end
  end
  reply[#reply + 1] = word
end
if #done == 0 then return reply end
group.turns()
local limits = retention.limits()
event.open(limits.listened)
event.each('deleted', 'delete', done, 0)
finish.remove(limits.edges, done)
if limits.edges then
  for _, id in ipairs(done) do deps.leave(id) end
  deps.tell(done, TELL)
end
finish.close()
return reply
