-- schedule_pause: let a schedule fire no more; or again, from its next time on.
-- @key   meta       reads the clock's offset under test
-- @key   schedules  removes it, or adds when it fires next
-- @key   schedule   sets the record
-- @key   wake       hints when it is the earliest
-- @key   keep       reads the earliest promise
-- @arg   name       text     of the schedule
-- @arg   paused     integer  1 or 0
-- @reply ok now record
-- @reply gone
-- @include clock wakeup schedule_record schedule_fire

local now = clock.now(meta)
local sched = schedule_record.parse(redis.call('HGET', schedule, name))
if not sched then return {'gone'} end
if sched.paused == paused then return {'ok', now, schedule_record.format(sched)} end
-- Removes first, because a full server refuses what adds before.
redis.call('ZREM', schedules, name)
sched.paused = paused == 1 and 1 or 0
if sched.paused == 0 then
  sched.seen = math.max(sched.seen, now) -- times that passed while it was paused are not missed
  schedule_record.trim(sched)
end
local sets = {schedules = schedules, schedule = schedule}
local at = schedule_fire.note(sets, schedule_record, name, sched, now, 0)
if at then wakeup.due(wake, keep, at, now) end
return {'ok', now, schedule_record.format(sched)}
