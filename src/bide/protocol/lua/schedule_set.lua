-- schedule_set: set a schedule; if its times do not change, it keeps its next time.
-- @arg   name       text     of the schedule
-- @arg   kind       text     every | cron | at
-- @arg   priority   integer  of its jobs
-- @arg   interval   integer  of every, in µs; else 0
-- @arg   jitter     integer  µs by which a job may be due after its time, at most
-- @arg   missed     text     skip | once | all
-- @arg   limit      integer  how often it fires; 0 for no limit
-- @arg   start      integer  µs; nothing is fired before
-- @arg   ends       integer  µs; nothing is fired after; 0 for no end
-- @arg   times      text     its times; of every none; of cron none to ask after when they count
-- @arg   closed     integer  1 if there are no more times than these
-- @arg   timing     text     a line that says when it fires: what is compared
-- @arg   task       text     the name of its task
-- @arg   constraint_line  text  of its jobs; or none
-- @arg   body       text     of its jobs
-- @arg   was        text     version, jitter and missed that are to stand there; or none
-- @reply ok now record    it was set
-- @reply same now record  nothing was changed
-- @reply times now after  nothing was changed: send its times, of those after this one
-- @reply stale now record refused: another has changed when it fires
-- @reply gone             refused: it was to be changed, and is not there
-- @reply data             refused: the queue holds data
-- @reply many             refused: the queue has as many schedules as it may

-- was: only the times, jitter and missed are set, if these still stand there; task, constraints,
-- priority and body stay. Without it the schedule is set whole.
local MOST = 100000

local given = schedule_record.times(times)
local whole = true
for _, number in ipairs({priority, interval, jitter, limit, start, ends}) do
  whole = whole and schedule_record.is_whole(number)
end
if not given or not whole or priority > 9 or not schedule_record.is_name(name)
  or not schedule_record.MISSED[missed] or (kind ~= 'every' and kind ~= 'cron' and kind ~= 'at')
  or (kind == 'every') ~= (interval > 0) or string.find(timing .. task, '[\n\r]')
  or #timing + #task > 8192
  or (constraint_line ~= '' and not constraints.valid(constraint_line)) then
  return redis.error_reply('BADARG schedule_set')
end

if redis.call('HGET', meta, 'kind') == 'data' then return {'data'} end
local sched = schedule_record.parse(redis.call('HGET', schedule, name))
local is_new = not sched
if was ~= '' then
  body = sched and redis.call('HGET', scheduled, name)
  if not body then return {'gone'} end
  priority, task, constraint_line = sched.priority, sched.task, sched.constraints
  local is_repeat = sched.timing == timing and sched.jitter == jitter and sched.missed == missed
  local stands = string.format('%.0f %.0f %s', sched.version, sched.jitter, sched.missed)
  if not is_repeat and stands ~= was then
    return {'stale', now, schedule_record.format(sched)}
  end
end
if sched and sched.timing == timing then
  if sched.priority == priority and sched.jitter == jitter and sched.missed == missed
    and sched.task == task and sched.constraints == constraint_line
    and redis.call('HGET', scheduled, name) == body then
    return {'same', now, schedule_record.format(sched)}
  end
else
  if is_new and redis.call('HLEN', schedule) >= MOST then return {'many'} end
  local seen = math.max(now, start - 1, sched and sched.last or 0)
  if kind == 'cron' and times == '' and closed == 0 then return {'times', now, seen} end
  sched = {kind = kind, interval = interval, limit = limit, ends = ends,
    paused = sched and sched.paused or 0, fired = 0, seen = seen, last = sched and sched.last or 0,
    timing = timing, closed = closed == 1, times = given,
    version = math.max(now, sched and sched.version + 1 or 0)}
  if kind == 'every' then
    sched.times, sched.closed = {start > 0 and start or now + interval}, false
  end
  schedule_record.trim(sched)
end
sched.priority, sched.jitter, sched.missed = priority, jitter, missed
sched.task, sched.constraints = task, constraint_line

redis.call('HSET', scheduled, name, body)
local at = schedule_record.write(name, sched)
redis.call('HSET', meta, 'scheduled', 1)
if constraint_line ~= '' then redis.call('HSETNX', meta, 'terms', 1) end
if #body > read_budget.LARGE then redis.call('HSETNX', meta, 'large', 1) end
if at then wakeup.due(at) end
return {'ok', now, schedule_record.format(sched)}
