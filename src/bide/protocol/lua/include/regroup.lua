-- What a check does about the group of a job (`of`; nil for none) that it puts elsewhere, or that
-- its group does not know of. `place` is where the job is, or goes: state, level and score.
local regroup = {}

function regroup.leave(sets, group, of, place, id)
  if of and place.state == 'active' then
    group.release(sets, of, id)
  elseif of and place.state == 'due' and place.level == group.GROUPED then
    group.drop(sets, of, tonumber(place.score) or 0, id)
  end
end

function regroup.enter(sets, group, of, place, id)
  if of and place.state == 'active' then
    group.hold(sets, of, id)
  elseif of and place.state == 'due' and place.level == group.GROUPED then
    group.put(sets, of, tonumber(place.score), id)
  end
end

-- Whether its group has it where it is.
function regroup.is_known(sets, group, of, place, id)
  if of and place.state == 'active' then
    return redis.call('ZSCORE', sets.held, of.name .. ' ' .. id)
  elseif of and place.state == 'due' and place.level == group.GROUPED then
    return redis.call('ZSCORE', sets.order, group.entry(of.name, tonumber(place.score) or 0, id))
  end
  return true
end

return regroup
