-- schedule_refill: send a schedule more of its times, as a claim has asked for them.
-- @key   meta       reads the clock's offset under test
-- @key   schedules  sets when it fires next
-- @key   schedule   sets the record
-- @key   wake       hints when it is the earliest
-- @key   keep       reads the earliest promise
-- @arg   name       text     of the schedule
-- @arg   version    text     whose times these are
-- @arg   times      text     in order; those that were fired meanwhile are dropped
-- @arg   closed     integer  1 if there are no more times than these
-- @reply ok now record
-- @reply stale      it was set anew meanwhile, or removed
-- @include clock hint timetable fire

local given = timetable.times(times)
if not given then return redis.error_reply('BADARG schedule_refill times') end
local now = clock.now(meta)
local f = timetable.parse(redis.call('HGET', schedule, name))
if not f or f.kind ~= 'cron' or string.format('%.0f', f.version) ~= version then
  return {'stale'}
end
-- One that has fired as often as it may is over, whatever its times.
if f.closed then return {'ok', now, timetable.format(f)} end
f.times, f.closed = given, closed == 1
timetable.trim(f)
-- Removes first, because a full server refuses what adds before.
redis.call('ZREM', schedules, name)
local at = fire.note({schedules = schedules, schedule = schedule}, timetable, name, f, now, 0)
if at then hint.due(wake, keep, at, now) end
return {'ok', now, timetable.format(f)}
