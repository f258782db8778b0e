-- The part of checks for the group of a job (`grp`; nil for none) that a repair moves, or that its
-- group does not contain. `place` is where the job is, or goes: state, level and score.
local fsck_group = {}

function fsck_group.leave(grp, place, id)
  if grp and place.state == 'active' then
    group.release(grp, id)
  elseif grp and place.state == 'due' and place.level == group.GROUPED then
    group.drop(grp, tonumber(place.score) or 0, id)
  end
end

function fsck_group.enter(grp, place, id)
  if grp and place.state == 'active' then
    redis.call('ZADD', held, 0, grp.name .. ' ' .. id)
  elseif grp and place.state == 'due' and place.level == group.GROUPED then
    group.put(grp, tonumber(place.score), id)
  end
end

-- Whether its group has it where it is.
function fsck_group.is_known(grp, place, id)
  if grp and place.state == 'active' then
    return redis.call('ZSCORE', held, grp.name .. ' ' .. id)
  elseif grp and place.state == 'due' and place.level == group.GROUPED then
    return redis.call('ZSCORE', order, group.entry(grp.name, tonumber(place.score) or 0, id))
  end
  return true
end

return fsck_group
