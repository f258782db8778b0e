-- schedule_pause: pause a schedule, or resume it from its next time.
-- @arg   name       text     of the schedule
-- @arg   paused     integer  1 or 0
-- @reply ok now record
-- @reply gone

local sched = schedule_record.parse(redis.call('HGET', schedule, name))
if not sched then return {'gone'} end
if sched.paused == paused then return {'ok', now, schedule_record.format(sched)} end
sched.paused = paused == 1 and 1 or 0
if sched.paused == 0 then
  sched.seen = math.max(sched.seen, now) -- times that passed while it was paused are not missed
  schedule_record.trim(sched)
end
return schedule_record.store(name, sched)
