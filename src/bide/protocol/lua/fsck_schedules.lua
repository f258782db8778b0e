-- fsck_schedules: check a part of the data of schedules, and repair inconsistencies.
-- @arg   part       text     schedules | schedule | scheduled

-- A schedule that wants more times is looked at again and again, this far apart.
local SOON = 60000000

local has_some = false
local function tell(id, says, fix) return fsck.tell(part, id, says, fix) end

local function check_record(name, line)
  has_some = true
  local sched = schedule_record.parse(line)
  local says
  if not sched then
    says = 'cannot be read'
  elseif redis.call('HEXISTS', scheduled, name) == 0 then
    says = 'has lost the body of its jobs'
  end
  if says then
    if tell(name, says, 'is removed: set it again') then
      redis.call('ZREM', schedules, name)
      redis.call('HDEL', scheduled, name)
      redis.call('HDEL', schedule, name)
    end
    return
  end
  local wanted = schedule_record.score(sched)
  local score = tonumber(redis.call('ZSCORE', schedules, name))
  local asks = wanted and not sched.times[1]
  if not wanted and score then
    if tell(name, 'is ' .. (sched.paused == 1 and 'paused' or 'over') .. ', and is to fire',
      'is not to fire any more') then
      redis.call('ZREM', schedules, name)
    end
  elseif wanted
    and (not score or (asks and score > now + SOON) or (not asks and score ~= wanted)) then
    if tell(name, 'is not to fire when it says', 'fires when it says') then
      redis.call('ZADD', schedules, wanted, name)
      wakeup.push('-')
    end
  end
end

local function is_stray(name)
  return redis.call('HEXISTS', schedule, name) == 0
    and tell(name, 'is there without a schedule', 'is removed')
end

if part == 'schedules' then
  fsck.zset(schedules, function(name)
    if is_stray(name) then redis.call('ZREM', schedules, name) end
  end)
elseif part == 'schedule' then
  fsck.hash(schedule, check_record)
elseif part == 'scheduled' then
  fsck.hash(scheduled, function(name)
    if is_stray(name) then redis.call('HDEL', scheduled, name) end
  end, true)
else
  return redis.error_reply('BADARG fsck_schedules part')
end
if cursor == '0' and has_some and redis.call('HEXISTS', meta, 'scheduled') == 0
  and tell('', 'are there, and meta does not say so', 'is said') then
  redis.call('HSET', meta, 'scheduled', 1)
  wakeup.push('-')
end
return fsck.reply()
