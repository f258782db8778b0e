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
-- @include clock hint timetable fire

local now = clock.now(meta)
local f = timetable.parse(redis.call('HGET', schedule, name))
if not f then return {'gone'} end
if f.paused == paused then return {'ok', now, timetable.format(f)} end
-- Removes first, because a full server refuses what adds before.
redis.call('ZREM', schedules, name)
f.paused = paused == 1 and 1 or 0
if f.paused == 0 then
  f.seen = math.max(f.seen, now) -- what would have been while it was paused, has not been missed
  timetable.trim(f)
end
local at = fire.note({schedules = schedules, schedule = schedule}, timetable, name, f, now, 0)
if at then hint.due(wake, keep, at, now) end
return {'ok', now, timetable.format(f)}
