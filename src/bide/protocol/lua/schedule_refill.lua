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
-- @reply stale      it was set again meanwhile, or removed
-- @include clock wakeup schedule_record schedule_fire

local given = schedule_record.times(times)
if not given then return redis.error_reply('BADARG schedule_refill times') end
local now = clock.now(meta)
local sched = schedule_record.parse(redis.call('HGET', schedule, name))
if not sched or sched.kind ~= 'cron' or string.format('%.0f', sched.version) ~= version then
  return {'stale'}
end
-- One that has fired as often as it may is over, whatever its times.
if sched.closed then return {'ok', now, schedule_record.format(sched)} end
sched.times, sched.closed = given, closed == 1
schedule_record.trim(sched)
-- Removes first, because a full server refuses what adds before.
redis.call('ZREM', schedules, name)
local sets = {schedules = schedules, schedule = schedule}
local at = schedule_fire.note(sets, schedule_record, name, sched, now, 0)
if at then wakeup.due(wake, keep, at, now) end
return {'ok', now, schedule_record.format(sched)}
