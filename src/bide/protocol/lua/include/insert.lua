-- Jobs that come in, and where they stand: among those of their group, or alone; and how one that
-- waits is given another place. It is what `dedup` needs to know of the queue.
local insert = {}

-- `sets`: the queue's keys by their names. `ctx`: what the script includes, now, book, and the
-- groups that are touched: the caller calls `group.turns` afterwards. `stores`: where a job that
-- `purge` has set aside may have left something.
function insert.open(sets, ctx, stores)
  local group = ctx.group
  local inserter = {GROUPED = group.GROUPED, held = {}, news = 0, notes = 0}
  for _, name in ipairs({'meta', 'due', 'jobs', 'terms', 'expiring', 'unique', 'folded', 'active',
    'cancelled', 'run'}) do
    inserter[name] = sets[name]
  end
  for _, name in ipairs({'locate', 'run_record', 'expire', 'dedup_keys', 'constraints',
    'read_budget'}) do
    inserter[name] = ctx[name]
  end

  function inserter.is_trashed(id)
    return redis.call('HEXISTS', inserter.meta, 'trash') == 1
      and ctx.trash_sweep.take(sets.trash, stores, {id})[id]
  end

  -- Something is due then, which the gate may hold back; or over, which no gate does.
  local soonest_due, soonest_over
  function inserter.due_by(at)
    if at and (not soonest_due or at < soonest_due) then soonest_due = at end
  end
  function inserter.by(at)
    if at and (not soonest_over or at < soonest_over) then soonest_over = at end
  end

  -- When someone must look at what was added, if at all; `rate_limit` where the queue has limits.
  function inserter.soonest(rate_limit)
    local at = soonest_due
    if at and rate_limit then at = rate_limit.earliest(inserter.meta, at, ctx.now) end
    inserter.by(at)
    return soonest_over
  end

  function inserter.begins(begins_by) inserter.by(begins_by and math.max(begins_by, ctx.now)) end

  -- Where a job stands, with these terms.
  local function put(id, line, level, at)
    local grp = group.touch(sets, ctx.touched, line)
    if not grp then
      redis.call('ZADD', inserter.due[level], at, id)
      return inserter.due_by(at)
    end
    inserter.has_groups = true
    group.join(grp, line, level)
    group.put(sets, grp, at, id)
  end

  -- A new one, whose body is stored.
  function inserter.add(id, line, level, at)
    if line ~= '' then redis.call('HSET', inserter.terms, id, line) end
    local begins_by = inserter.constraints.begins_by(line, at)
    if begins_by then
      redis.call('ZADD', inserter.expiring, begins_by, id)
      inserter.begins(begins_by)
    end
    put(id, line, level, at)
  end

  -- One that waits, from one place to another.
  function inserter.move(id, level, was, to_level, at, before, line)
    redis.call('ZREM', inserter.due[level], id)
    local grp = level == group.GROUPED and group.touch(sets, ctx.touched, before)
    if grp then group.drop(sets, grp, was, id) end
    local soonest = soonest_due
    put(id, line, to_level, at)
    if at >= was then soonest_due = soonest end
    if ctx.book and at ~= was then
      ctx.event.add(ctx.book, 'rescheduled', 'fold', id, '-', 0, at, '')
    end
  end

  return inserter
end

return insert
