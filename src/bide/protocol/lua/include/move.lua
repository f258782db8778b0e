-- New due times for jobs that have not started.
local move = {}

local room = {left = 1000000} -- of notes that are read to add to them

-- Moves a job from `was` to `at`. `restarts`: its caller has said when it is due, so that the wait
-- of one that a worker without its task returned starts again.
function move.job(id, level, was, at, restarts)
  redis.call('ZREM', due[level], id)
  level = record_store.moved(id, level, restarts and math.max(at, now))
  redis.call('ZADD', due[level], at, id)
  local by = constraints.begins_by(redis.call('HGET', terms, id), at)
  if by then redis.call('ZADD', expiring, 'XX', 'LT', by, id) end
  local grp = level == group.GROUPED and group.leave(was, id)
  if grp then group.put(grp, at, id) end
  if was ~= at then history.move(room, id, was, at) end
end

return move
