-- The jobs of schedules: one job for each time that has come, named after schedule and time. One
-- script adds the job and moves the schedule on, so a crash can neither lose a job nor add it
-- twice.
local schedule_fire = {}

local AT_ONCE, BYTES, FEW, PAUSE = 20, 2000000, 8, 1000000

local deduplicates = false -- any of the schedules that have fired

-- Adds a job of a schedule, unless it is there, or is deduplicated. `finish` comes behind all that
-- were added. Says what came of it, as `dedup` does: a word, when the job is due, and its id.
function schedule_fire.add(sched, id, body, at)
  local level, rule = 10 - sched.priority, dedup_keys.rule(sched.constraints)
  local word, holder = 'created', id
  if rule then
    deduplicates = true
    word, at, holder =
      dedup.call(rule, {id = id, at = at, level = level, body = body, line = sched.constraints})
  elseif redis.call('HSETNX', jobs, id, body) == 0 then
    if not new_jobs.untrash({id})[id] then return 'duplicate', 0, id end
    redis.call('HSET', jobs, id, body)
  end
  if word == 'created' then
    insert.add(id, sched.constraints, level, at)
    if book then event.add('added', 'fire', id, '-', 0, at, '') end
  end
  return word, at, holder
end

function schedule_fire.finish()
  if deduplicates then dedup.finish() end
  insert.finish()
end

-- Fires some of what is due. Each schedule has its share of what is left, so that one with many
-- times behind it does not keep the others waiting. Returns when the next is, the names of those
-- that want more times, and whether a job of a group was added.
function schedule_fire.some()
  local names = redis.call('ZRANGEBYSCORE', schedules, '-inf', now, 'LIMIT', 0, AT_ONCE)
  local left, bytes, thin = AT_ONCE, BYTES, {}
  for i, name in ipairs(names) do
    if left == 0 or bytes <= 0 then break end
    local sched = schedule_record.parse(redis.call('HGET', schedule, name))
    local body = sched and redis.call('HGET', scheduled, name)
    if not body then
      redis.call('ZREM', schedules, name) -- `bide fsck` says so
    else
      local part = #names - i + 1
      local most = math.max(1, math.floor(math.min(left, bytes / #body) / part))
      for _, at in ipairs(schedule_record.take(sched, most)) do
        local id = string.format('%s@%.0f', name, at)
        schedule_fire.add(sched, id, body, at + schedule_record.delay(sched, id))
        left, bytes = left - 1, bytes - #body
      end
      schedule_record.write(name, sched, PAUSE)
      local is_thin = sched.kind == 'cron' and not sched.closed and #sched.times < FEW
      if is_thin then thin[#thin + 1] = name end
    end
  end
  if #names > 0 then schedule_fire.finish() end
  local first = redis.call('ZRANGE', schedules, 0, 0, 'WITHSCORES')
  return tonumber(first[2]), table.concat(thin, ' '), #names > 0 and insert.has_groups
end

return schedule_fire
