-- What schedules make due: a job for each time that has come, named after the schedule and the
-- time. One script adds the job and moves the schedule on, so that nobody who dies can lose or
-- double one.
local fire = {}

local AT_ONCE, BYTES, FEW, PAUSE = 20, 2000000, 8, 1000000

-- Adds a job of a schedule, unless it is there, or folds into another. `s` is of `stand`; the
-- groups that are touched have their turns behind it. Says what came of it, as `fold` does: a word,
-- when the job is due, and its id.
function fire.add(s, with, f, id, body, at)
  local level, rule = 10 - f.priority, with.hold.rule(f.terms)
  local word, holder = 'new', id
  if rule then
    word, at, holder = with.fold.call(s, rule,
      {id = id, now = with.now, at = at, level = level, body = body, line = f.terms})
  elseif redis.call('HSETNX', s.jobs, id, body) == 0 then
    if not s.is_trashed(id) then return 'exists', 0, id end
    redis.call('HSET', s.jobs, id, body)
  end
  if word == 'new' then
    s.add(id, f.terms, level, at)
    if with.book then with.event.add(with.book, 'added', 'fire', id, '-', 0, at, '') end
  end
  return word, at, holder
end

-- Behind all that was added: keys that hold nothing are forgotten, groups have their turns.
function fire.finish(sets, s, with)
  if s.news + s.notes > 0 then with.fold.finish(s, with.now) end
  if s.has_groups then
    redis.call('HSETNX', sets.meta, 'groups', 1)
    sets.has_groups = true
  end
  s.due_by(with.group.turns(sets, with.touched, with.now))
  with.touched = {}
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
function fire.some(keys, timetable, stand, with, stores)
  local now = with.now
  local names = redis.call('ZRANGEBYSCORE', keys.schedules, '-inf', now, 'LIMIT', 0, AT_ONCE)
  local left, bytes, thin = AT_ONCE, BYTES, {}
  local s = #names > 0 and stand.open(keys, with, stores)
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
        fire.add(s, with, f, id, body, at + timetable.delay(f, id))
        left, bytes = left - 1, bytes - #body
      end
      fire.note(keys, timetable, name, f, now, PAUSE)
      if timetable.is_thin(f, FEW) then thin[#thin + 1] = name end
    end
  end
  if s then fire.finish(keys, s, with) end
  local first = redis.call('ZRANGE', keys.schedules, 0, 0, 'WITHSCORES')
  return tonumber(first[2]), table.concat(thin, ' ')
end

return fire
