-- dep_resolve: apply the ends of parents in other queues to their children in this one.
-- @rest  child parent outcome
-- @reply ok

-- Of one that was told already, or that waits for this no more, nothing is changed.
local TELL = 100
for i = rest, #ARGV, 3 do
  if not deps_edges.is_remote(ARGV[i + 1]) or not string.find(ARGV[i + 2], '^[CFX]$') then
    return redis.error_reply('BADARG dep_resolve rest')
  end
end
event.open()
for i = rest, #ARGV, 3 do
  local child, parent = ARGV[i], ARGV[i + 1]
  redis.call('ZREM', edges, '?' .. child .. ' ' .. parent)
  if redis.call('ZREM', edges, '<' .. child .. ' ' .. parent) == 1
    and redis.call('ZSCORE', blocked, child) then
    deps.resolve(child, parent, ARGV[i + 2])
  end
end
deps.tell({unpack(deps.dropped)}, TELL)
finish.close()
return {'ok'}
