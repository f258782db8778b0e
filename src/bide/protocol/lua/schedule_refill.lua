-- schedule_refill: send more times of a schedule, as a claim has requested.
-- @arg   name       text     of the schedule
-- @arg   version    text     whose times these are
-- @arg   times      text     in order; those that were fired meanwhile are dropped
-- @arg   closed     integer  1 if there are no more times than these
-- @reply ok now record
-- @reply stale      it was set again meanwhile, or removed

local given = schedule_record.times(times)
if not given then return redis.error_reply('BADARG schedule_refill times') end
local sched = schedule_record.parse(redis.call('HGET', schedule, name))
if not sched or sched.kind ~= 'cron' or string.format('%.0f', sched.version) ~= version then
  return {'stale'}
end
-- One that has fired as often as it may is over, whatever its times.
if sched.closed then return {'ok', now, schedule_record.format(sched)} end
sched.times, sched.closed = given, closed == 1
schedule_record.trim(sched)
return schedule_record.store(name, sched)
