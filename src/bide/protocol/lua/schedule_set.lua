-- schedule_set: set a schedule; where it fires when it did before, it keeps its next time.
-- @key   meta       reads the kind, marks that there are schedules
-- @key   schedules  adds when it fires next
-- @key   schedule   adds the record
-- @key   scheduled  adds the body of its jobs
-- @key   wake       hints when it is the earliest
-- @key   keep       reads the earliest promise
-- @arg   name       text     of the schedule
-- @arg   kind       text     every | cron | at
-- @arg   priority   integer  of its jobs
-- @arg   interval   integer  of every, in µs; else 0
-- @arg   jitter     integer  µs by which a job may be due after its time, at most
-- @arg   missed     text     skip | once | all
-- @arg   limit      integer  how often it fires; 0 for ever
-- @arg   start      integer  µs; nothing is fired before
-- @arg   ends       integer  µs; nothing is fired after; 0 for ever
-- @arg   times      text     its times; of every none; of cron none to ask after when they count
-- @arg   closed     integer  1 if there are no more times than these
-- @arg   timing     text     a line that says when it fires: what is compared
-- @arg   task       text     the name of its task
-- @arg   terms      text     of its jobs; or none
-- @arg   body       text     of its jobs
-- @arg   was        text     version, jitter and missed that are to stand there; or none
-- @reply ok now record    it was set
-- @reply same now record  nothing was changed
-- @reply times now after  nothing was changed: send its times, of those after this one
-- @reply stale now record refused: another has changed when it fires
-- @reply gone             refused: it was to be changed, and is not there
-- @reply data             refused: the queue holds data
-- @reply many             refused: the queue has as many schedules as it may
-- @include clock hint weigh term timetable fire

-- was: only the times, jitter and missed are set, if these still stand there; task, terms, priority
-- and body stay. Without it the schedule is set whole.
local MOST = 100000

local given = timetable.times(times)
local whole = true
for _, number in ipairs({priority, interval, jitter, limit, start, ends}) do
  whole = whole and timetable.is_whole(number)
end
if not given or not whole or priority > 9 or not timetable.is_name(name)
  or not timetable.is_missed(missed) or (kind ~= 'every' and kind ~= 'cron' and kind ~= 'at')
  or (kind == 'every') ~= (interval > 0) or string.find(timing .. task, '[\n\r]')
  or #timing + #task > 8192 or (terms ~= '' and not term.valid(terms)) then
  return redis.error_reply('BADARG schedule_set')
end

local now = clock.now(meta)
if redis.call('HGET', meta, 'kind') == 'data' then return {'data'} end
local keys = {schedules = schedules, schedule = schedule}
local f = timetable.parse(redis.call('HGET', schedule, name))
local is_new = not f
if was ~= '' then
  body = f and redis.call('HGET', scheduled, name)
  if not body then return {'gone'} end
  priority, task, terms = f.priority, f.task, f.terms
  local is_there = f.timing == timing and f.jitter == jitter and f.missed == missed -- a repeat
  if not is_there and string.format('%.0f %.0f %s', f.version, f.jitter, f.missed) ~= was then
    return {'stale', now, timetable.format(f)}
  end
end
if f and f.timing == timing then
  if f.priority == priority and f.jitter == jitter and f.missed == missed and f.task == task
    and f.terms == terms and redis.call('HGET', scheduled, name) == body then
    return {'same', now, timetable.format(f)}
  end
else
  if is_new and redis.call('HLEN', schedule) >= MOST then return {'many'} end
  local seen = math.max(now, start - 1, f and f.last or 0)
  if kind == 'cron' and times == '' and closed == 0 then return {'times', now, seen} end
  f = {kind = kind, interval = interval, limit = limit, ends = ends, paused = f and f.paused or 0,
    fired = 0, seen = seen, last = f and f.last or 0, timing = timing, closed = closed == 1,
    times = given, version = math.max(now, f and f.version + 1 or 0)}
  if kind == 'every' then f.times, f.closed = {start > 0 and start or now + interval}, false end
  timetable.trim(f)
end
f.priority, f.jitter, f.missed, f.task, f.terms = priority, jitter, missed, task, terms

redis.call('HSET', scheduled, name, body)
local at = fire.note(keys, timetable, name, f, now, 0)
redis.call('HSET', meta, 'scheduled', 1)
if terms ~= '' then redis.call('HSETNX', meta, 'terms', 1) end
if #body > weigh.LARGE then redis.call('HSETNX', meta, 'large', 1) end
if at then hint.due(wake, keep, at, now) end
return {'ok', now, timetable.format(f)}
