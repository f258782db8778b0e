-- delete: delete jobs that no worker holds, with all their data.
-- @arg   unbegun   integer  1 if jobs that have not ended may be deleted too
-- @rest  id
-- @reply ok, then per job: ok | active | held | unended | gone

-- held: its worker returns it, because it is not due yet; or the call has done enough. Ask again

local TELL = 100

local reply, done = {'ok'}, {}
local awaited = 0 -- parents of those that are to be deleted
for i = rest, #ARGV do
  local id = ARGV[i]
  local word = 'ok'
  local is_blocked = unbegun == 1 and redis.call('ZSCORE', blocked, id)
  if is_blocked and awaited >= deps_edges.MOST then
    word = 'held'
  elseif is_blocked then
    redis.call('ZREM', blocked, id)
    awaited = awaited + deps_edges.awaited(id)[1]
    done[#done + 1] = id
  elseif redis.call('ZSCORE', active, id) then
    word = unbegun == 1 and locate.recall(id) and 'held' or 'active'
  else
    local level, at
    if unbegun == 1 then level, at = locate.take_due(id) end
    if level == group.GROUPED then group.leave(at, id) end
    if level or redis.call('ZREM', completed, id) == 1 or redis.call('ZREM', failed, id) == 1
      or redis.call('ZREM', cancelled, id) == 1 then
      done[#done + 1] = id
    else
      word = unbegun == 0 and redis.call('HEXISTS', jobs, id) == 1 and 'unended' or 'gone'
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
