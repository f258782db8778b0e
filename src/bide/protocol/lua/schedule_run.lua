-- schedule_run: make a job of a schedule now, beside those that it makes at its times.
-- @key   meta       reads whether a trash is left, who listens, and the limits; marks large bodies
-- @key   schedule   reads
-- @key   scheduled  reads the body of its jobs
-- @key   due        adds, and moves what this folds into
-- @key   jobs       adds the body, or replaces that of the job into which this folds
-- @key   terms      adds those of its jobs
-- @key   unique     adds who holds a key
-- @key   folded     adds a call that was folded
-- @key   active     looks
-- @key   cancelled  looks
-- @key   run        looks, removes what a trashed namesake left
-- @key   notes      removes what a trashed namesake left
-- @key   trash      removes a namesake
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
-- @reply ok now word due id    of the job; `dedup` says which words there are
-- @reply gone
-- @include clock wakeup event trash_sweep read_budget constraints run_record locate expire
-- @include dedup_keys dedup group insert schedule_record schedule_fire rate_limit

if string.sub(id, 1, #name + 1) ~= name .. '@' or not schedule_record.is_name(name) or #id > 128
  or not string.find(id, '^[^%s%c{}]+$') then
  return redis.error_reply('BADARG schedule_run id')
end
local now = clock.now(meta)
local sched = schedule_record.parse(redis.call('HGET', schedule, name))
local body = sched and redis.call('HGET', scheduled, name)
if not body then return {'gone'} end
local set = redis.call('HMGET', meta, 'listened', 'limited')
local book = event.open(set[1], now)
local sets = {meta = meta, jobs = jobs, due = due, terms = terms, expiring = expiring,
  order = order, held = held, groups = groups, turns = turns, unique = unique, folded = folded,
  active = active, cancelled = cancelled, run = run, trash = trash}
local ctx = {now = now, book = book, event = event, run_record = run_record,
  constraints = constraints, group = group, locate = locate, expire = expire, dedup = dedup,
  dedup_keys = dedup_keys, read_budget = read_budget, trash_sweep = trash_sweep,
  touched = {}}
local inserter = insert.open(sets, ctx, {run, notes, terms})
local word, at, holder = schedule_fire.add(inserter, ctx, sched, id, body, now)
schedule_fire.finish(sets, inserter, ctx)
if book then event.write(meta, events, book) end
local soonest = inserter.soonest(set[2] and rate_limit)
if soonest then wakeup.due(wake, keep, soonest, now) end
return {'ok', now, word, at, holder}
