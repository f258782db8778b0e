-- What a check does about the group of a job (`grp`; nil for none) that it puts elsewhere, or that
-- its group does not know of. `place` is where the job is, or goes: state, level and score.
local fsck_group = {}

function fsck_group.leave(sets, group, grp, place, id)
  if grp and place.state == 'active' then
    group.release(sets, grp, id)
  elseif grp and place.state == 'due' and place.level == group.GROUPED then
    group.drop(sets, grp, tonumber(place.score) or 0, id)
  end
end

function fsck_group.enter(sets, group, grp, place, id)
  if grp and place.state == 'active' then
    group.hold(sets, grp, id)
  elseif grp and place.state == 'due' and place.level == group.GROUPED then
    group.put(sets, grp, tonumber(place.score), id)
  end
end

-- Whether its group has it where it is.
function fsck_group.is_known(sets, group, grp, place, id)
  if grp and place.state == 'active' then
    return redis.call('ZSCORE', sets.held, grp.name .. ' ' .. id)
  elseif grp and place.state == 'due' and place.level == group.GROUPED then
    return redis.call('ZSCORE', sets.order, group.entry(grp.name, tonumber(place.score) or 0, id))
  end
  return true
end

return fsck_group
