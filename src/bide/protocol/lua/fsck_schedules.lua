-- fsck_schedules: look at a piece of what there is of schedules, and mend where it does not agree.
-- @key   meta       looks, marks that there are schedules
-- @key   schedules  looks, sets and removes when one fires next
-- @key   schedule   looks, removes records that cannot fire
-- @key   scheduled  looks, removes bodies of no schedule
-- @key   wake       hints when a schedule has been set right
-- @arg   part       text     schedules | schedule | scheduled
-- @arg   cursor     text     where to go on, as the reply before said; 0 to begin
-- @arg   limit      integer  how many to look at, about
-- @arg   repair     integer  1 to mend what is found, 0 only to say it
-- @reply ok now cursor    where to go on, 0 at the end; then per finding: kind id says fix
-- @include clock wakeup schedule_record read_budget

-- A schedule that wants more times is looked at again and again, this far apart.
local SOON = 60000000

local wheres = {schedules = schedules, schedule = schedule, scheduled = scheduled}
local where = wheres[part]
if not where or not string.find(cursor, '^%d+$') then
  return redis.error_reply('BADARG fsck_schedules part')
end
local now = clock.now(meta)
local scanned
if part == 'schedules' then
  scanned = redis.call('ZSCAN', where, cursor, 'COUNT', limit)
elseif part == 'schedule' then
  scanned = redis.call('HSCAN', where, cursor, 'COUNT', limit)
else
  scanned = read_budget.scan(where, cursor, limit)
end
-- Removes first, because a full server refuses what adds before.
if repair == 1 then redis.call('HDEL', meta, '') end
local reply = {'ok', now, scanned[1]}
local function tell(id, says, fix)
  for _, word in ipairs({part, id, says, fix}) do reply[#reply + 1] = word end
  return repair == 1
end

local function check_record(name, line)
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
  local wanted = schedule_record.score(sched, now, 0)
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
      wakeup.push(wake, '-')
    end
  end
end

for i = 1, #scanned[2], 2 do
  local name = scanned[2][i]
  if part == 'schedule' then
    check_record(name, scanned[2][i + 1])
  elseif redis.call('HEXISTS', schedule, name) == 0 then
    if tell(name, 'is there without a schedule', 'is removed') then
      if part == 'schedules' then
        redis.call('ZREM', where, name)
      else
        redis.call('HDEL', where, name)
      end
    end
  end
end
if cursor == '0' and part == 'schedule' and #scanned[2] > 0
  and redis.call('HEXISTS', meta, 'scheduled') == 0 then
  if tell('', 'are there, and meta does not say so', 'is said') then
    redis.call('HSET', meta, 'scheduled', 1)
    wakeup.push(wake, '-')
  end
end
return reply
