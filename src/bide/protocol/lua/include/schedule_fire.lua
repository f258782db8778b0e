-- What schedules make due: a job for each time that has come, named after the schedule and the
-- time. One script adds the job and moves the schedule on, so a crash can neither lose a job
-- nor add it twice.
local schedule_fire = {}

local AT_ONCE, BYTES, FEW, PAUSE = 20, 2000000, 8, 1000000

-- Adds a job of a schedule, unless it is there, or folds into another. `inserter` is made by
-- `insert.open`; the groups that are touched have their turns behind it. Says what came of it, as
-- `dedup` does: a word, when the job is due, and its id.
function schedule_fire.add(inserter, ctx, sched, id, body, at)
  local level, rule = 10 - sched.priority, ctx.dedup_keys.rule(sched.terms)
  local word, holder = 'created', id
  if rule then
    word, at, holder = ctx.dedup.call(inserter, rule,
      {id = id, now = ctx.now, at = at, level = level, body = body, line = sched.terms})
  elseif redis.call('HSETNX', inserter.jobs, id, body) == 0 then
    if not inserter.is_trashed(id) then return 'duplicate', 0, id end
    redis.call('HSET', inserter.jobs, id, body)
  end
  if word == 'created' then
    inserter.add(id, sched.terms, level, at)
    if ctx.book then ctx.event.add(ctx.book, 'added', 'fire', id, '-', 0, at, '') end
  end
  return word, at, holder
end

-- Behind all that was added: keys that hold nothing are forgotten, groups have their turns.
function schedule_fire.finish(sets, inserter, ctx)
  if inserter.news + inserter.notes > 0 then ctx.dedup.finish(inserter, ctx.now) end
  if inserter.has_groups then
    redis.call('HSETNX', sets.meta, 'groups', 1)
    sets.has_groups = true
  end
  inserter.due_by(ctx.group.turns(sets, ctx.touched, ctx.now))
  ctx.touched = {}
end

-- Writes where a schedule stands, and when it is to be looked at: where more times are to be sent,
-- after `pause`.
function schedule_fire.note(keys, schedule_record, name, sched, now, pause)
  redis.call('HSET', keys.schedule, name, schedule_record.format(sched))
  local at = schedule_record.score(sched, now, pause)
  if at then
    redis.call('ZADD', keys.schedules, at, name)
  else
    redis.call('ZREM', keys.schedules, name)
  end
  return at
end

-- Fires some of what is due. Returns when the next is, and the names of those that want more times.
function schedule_fire.some(keys, schedule_record, insert, ctx, stores)
  local now = ctx.now
  local names = redis.call('ZRANGEBYSCORE', keys.schedules, '-inf', now, 'LIMIT', 0, AT_ONCE)
  local left, bytes, thin = AT_ONCE, BYTES, {}
  local inserter = #names > 0 and insert.open(keys, ctx, stores)
  for _, name in ipairs(names) do
    if left == 0 or bytes <= 0 then break end
    local sched = schedule_record.parse(redis.call('HGET', keys.schedule, name))
    local body = sched and redis.call('HGET', keys.scheduled, name)
    if not body then
      redis.call('ZREM', keys.schedules, name) -- `bide fsck` says so
    else
      local most = math.min(left, math.max(1, math.floor(bytes / #body)))
      for _, at in ipairs(schedule_record.take(sched, now, most)) do
        local id = string.format('%s@%.0f', name, at)
        schedule_fire.add(inserter, ctx, sched, id, body, at + schedule_record.delay(sched, id))
        left, bytes = left - 1, bytes - #body
      end
      schedule_fire.note(keys, schedule_record, name, sched, now, PAUSE)
      if schedule_record.is_thin(sched, FEW) then thin[#thin + 1] = name end
    end
  end
  if inserter then schedule_fire.finish(keys, inserter, ctx) end
  local first = redis.call('ZRANGE', keys.schedules, 0, 0, 'WITHSCORES')
  return tonumber(first[2]), table.concat(thin, ' ')
end

return schedule_fire
