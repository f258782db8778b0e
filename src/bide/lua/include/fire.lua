-- What schedules make due: a job for each time that has come, named after the schedule and the
-- time. One script adds the job and moves the schedule on, so that nobody who dies can lose or
-- double one.
local fire = {}

local AT_ONCE, BYTES, FEW, PAUSE = 20, 2000000, 8, 1000000

-- Adds a job of a schedule, unless it is there; when it is due, or nil.
function fire.add(keys, event, term, group, book, f, id, body, at, now)
  if redis.call('HSETNX', keys.jobs, id, body) == 0 then return nil end
  if f.terms ~= '' then
    redis.call('HSET', keys.terms, id, f.terms)
    local begins_by = term.begins_by(f.terms, at)
    if begins_by then redis.call('ZADD', keys.expiring, begins_by, id) end
  end
  local touched = {}
  local of = group.touch(keys, touched, f.terms, f.priority)
  if of then
    of.priority = f.priority
    group.put(keys, of, at, id)
    group.turns(keys, touched, now)
    redis.call('HSETNX', keys.meta, 'groups', 1)
    keys.has_groups = true
  else
    redis.call('ZADD', keys.due[10 - f.priority], at, id)
  end
  if book then event.add(book, 'added', 'fire', id, '-', 0, at, '') end
  return at
end

-- Writes where a schedule stands, and when it is to be looked at: where more times are to be sent,
-- after `pause`.
function fire.note(keys, timetable, name, f, now, pause)
  redis.call('HSET', keys.schedule, name, timetable.format(f))
  local at = timetable.score(f, now, pause)
  if at then
    redis.call('ZADD', keys.schedules, at, name)
  else
    redis.call('ZREM', keys.schedules, name)
  end
  return at
end

-- Fires some of what is due. Returns when the next is, and the names of those that want more times.
function fire.some(keys, timetable, event, term, group, book, now)
  local names = redis.call('ZRANGEBYSCORE', keys.schedules, '-inf', now, 'LIMIT', 0, AT_ONCE)
  local left, bytes, thin = AT_ONCE, BYTES, {}
  for _, name in ipairs(names) do
    if left == 0 or bytes <= 0 then break end
    local f = timetable.parse(redis.call('HGET', keys.schedule, name))
    local body = f and redis.call('HGET', keys.scheduled, name)
    if not body then
      redis.call('ZREM', keys.schedules, name) -- `bide fsck` says so
    else
      local most = math.min(left, math.max(1, math.floor(bytes / #body)))
      for _, at in ipairs(timetable.take(f, now, most)) do
        local id = string.format('%s@%.0f', name, at)
        fire.add(keys, event, term, group, book, f, id, body, at + timetable.delay(f, id), now)
        left, bytes = left - 1, bytes - #body
      end
      fire.note(keys, timetable, name, f, now, PAUSE)
      if timetable.is_thin(f, FEW) then thin[#thin + 1] = name end
    end
  end
  local first = redis.call('ZRANGE', keys.schedules, 0, 0, 'WITHSCORES')
  return tonumber(first[2]), table.concat(thin, ' ')
end

return fire
