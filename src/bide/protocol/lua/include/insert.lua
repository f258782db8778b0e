-- The places of new and moved jobs, alone or in their groups.
local insert = {has_groups = false}

-- Something is due then, which the limits may hold back; or over, which no limits do.
local soonest_due, soonest_over

function insert.due_by(at)
  if at and (not soonest_due or at < soonest_due) then soonest_due = at end
end

function insert.by(at)
  if at and (not soonest_over or at < soonest_over) then soonest_over = at end
end

function insert.begins(begins_by) insert.by(begins_by and math.max(begins_by, now)) end

-- When someone must look at what was added, if at all; `limited` where the queue has limits.
function insert.soonest(limited)
  insert.by(soonest_due and limited and rate_limit.earliest(soonest_due) or soonest_due)
  return soonest_over
end

-- Where a job stands, with these constraints.
local function put(id, line, level, at)
  local grp = group.touch(line)
  if not grp then
    redis.call('ZADD', due[level], at, id)
    return insert.due_by(at)
  end
  insert.has_groups = true
  group.join(grp, line, level)
  group.put(grp, at, id)
end

-- A new one, whose body is stored.
function insert.add(id, line, level, at)
  if line ~= '' then redis.call('HSET', terms, id, line) end
  local begins_by = constraints.begins_by(line, at)
  if begins_by then
    redis.call('ZADD', expiring, begins_by, id)
    insert.begins(begins_by)
  end
  put(id, line, level, at)
end

-- One that waits, from one place to another.
function insert.move(id, level, was, to_level, at, before, line)
  redis.call('ZREM', due[level], id)
  local grp = level == group.GROUPED and group.touch(before)
  if grp then group.drop(grp, was, id) end
  local soonest = soonest_due
  put(id, line, to_level, at)
  if at >= was then soonest_due = soonest end
  if book and at ~= was then event.add('rescheduled', 'dedup', id, '-', 0, at, '') end
end

-- Behind all that was added: groups have their turns.
function insert.finish()
  if insert.has_groups then redis.call('HSETNX', meta, 'groups', 1) end
  insert.due_by(group.turns())
end

return insert
