-- schedule_run: create a job of a schedule now, in addition to its times.
-- @arg   name       text     of the schedule
-- @arg   id         text     of the job; one that exists changes nothing
-- @reply ok now word due id    of the job; `dedup` says which words there are
-- @reply gone

if string.sub(id, 1, #name + 1) ~= name .. '@' or not schedule_record.is_name(name) or #id > 128
  or not string.find(id, '^[^%s%c{}]+$') then
  return redis.error_reply('BADARG schedule_run id')
end
local sched = schedule_record.parse(redis.call('HGET', schedule, name))
local body = sched and redis.call('HGET', scheduled, name)
if not body then return {'gone'} end
local set = redis.call('HMGET', meta, 'listened', 'limited')
event.open(set[1])
local word, at, holder = schedule_fire.add(sched, id, body, now)
schedule_fire.finish()
event.write()
local soonest = insert.soonest(set[2])
if soonest then wakeup.due(soonest) end
return {'ok', now, word, at, holder}
