-- schedule_run: make a job of a schedule now, beside those that it makes at its times.
-- @key   meta       reads whether someone listens
-- @key   schedule   reads
-- @key   scheduled  reads the body of its jobs
-- @key   due        adds
-- @key   jobs       adds the body
-- @key   terms      adds those of its jobs
-- @key   expiring   adds, if it must begin by a time
-- @key   order      adds, if it is of a group
-- @key   held       looks
-- @key   groups     reads and notes its group
-- @key   turns      moves its group's marker
-- @key   wake       hints
-- @key   keep       reads the earliest promise
-- @key   events     tells listeners
-- @arg   name       text     of the schedule
-- @arg   id         text     of the job; one that exists changes nothing
-- @reply ok now due | exists now 0
-- @reply gone
-- @include clock hint event term timetable group fire

if string.sub(id, 1, #name + 1) ~= name .. '@' or not timetable.is_name(name) or #id > 128
  or not string.find(id, '^[^%s%c{}]+$') then
  return redis.error_reply('BADARG schedule_run id')
end
local now = clock.now(meta)
local f = timetable.parse(redis.call('HGET', schedule, name))
local body = f and redis.call('HGET', scheduled, name)
if not body then return {'gone'} end
local book = event.book(meta, now)
local keys = {meta = meta, jobs = jobs, due = due, terms = terms, expiring = expiring,
  order = order, held = held, groups = groups, turns = turns}
if not fire.add(keys, event, term, group, book, f, id, body, now, now) then
  return {'exists', now, 0}
end
if book then event.write(meta, events, book) end
hint.due(wake, keep, now, now)
return {'ok', now, now}
