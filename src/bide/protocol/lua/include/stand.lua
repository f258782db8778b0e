-- Jobs that come in, and where they stand: among those of their group, or alone; and how one that
-- waits is given another place. It is what `fold` needs to know of the queue.
local stand = {}

-- `sets`: the queue's keys by their names. `with`: what the script includes, now, book, and the
-- groups that are touched: whoever adds calls `group.turns` behind it. `stores`: where a job that
-- `empty` has set aside may have left something.
function stand.open(sets, with, stores)
  local group = with.group
  local s = {GROUPED = group.GROUPED, held = {}, news = 0, notes = 0}
  for _, name in ipairs({'meta', 'due', 'jobs', 'terms', 'expiring', 'unique', 'folded', 'active',
    'cancelled', 'run'}) do
    s[name] = sets[name]
  end
  for _, name in ipairs({'find', 'record', 'expire', 'hold', 'term', 'weigh'}) do
    s[name] = with[name]
  end

  function s.is_trashed(id)
    return redis.call('HEXISTS', s.meta, 'trash') == 1
      and with.sweep.take(sets.trash, stores, {id})[id]
  end

  -- Something is due then, which the gate may hold back; or over, which no gate does.
  local soonest_due, soonest_over
  function s.due_by(at)
    if at and (not soonest_due or at < soonest_due) then soonest_due = at end
  end
  function s.by(at)
    if at and (not soonest_over or at < soonest_over) then soonest_over = at end
  end

  -- When someone must look at what was added, if at all; `gate` where the queue has limits.
  function s.soonest(gate)
    if soonest_due and gate then s.by(gate.earliest(s.meta, soonest_due, with.now))
    else s.by(soonest_due) end
    return soonest_over
  end

  function s.begins(begins_by) s.by(begins_by and math.max(begins_by, with.now)) end

  -- Where a job stands, with these terms.
  local function put(id, line, level, at)
    local of = group.touch(sets, with.touched, line)
    if not of then
      redis.call('ZADD', s.due[level], at, id)
      return s.due_by(at)
    end
    s.has_groups = true
    group.join(of, line, level)
    group.put(sets, of, at, id)
  end

  -- A new one, whose body is stored.
  function s.add(id, line, level, at)
    if line ~= '' then redis.call('HSET', s.terms, id, line) end
    local begins_by = s.term.begins_by(line, at)
    if begins_by then
      redis.call('ZADD', s.expiring, begins_by, id)
      s.begins(begins_by)
    end
    put(id, line, level, at)
  end

  -- One that waits, from one place to another.
  function s.move(id, level, was, to_level, at, before, line)
    redis.call('ZREM', s.due[level], id)
    local of = level == group.GROUPED and group.touch(sets, with.touched, before)
    if of then group.drop(sets, of, was, id) end
    local soonest = soonest_due
    put(id, line, to_level, at)
    if at >= was then soonest_due = soonest end
    if with.book and at ~= was then
      with.event.add(with.book, 'rescheduled', 'fold', id, '-', 0, at, '')
    end
  end

  return s
end

return stand
