-- The record of a schedule: a line for the scripts, a line of JSON that says when it fires (as its
-- client wrote it), the task's name, and the terms of its jobs, if they have some:
--
--   version kind priority interval jitter missed limit end paused fired seen last: times
--
-- version: grows with each change of when it fires; whoever sends more times says for which. kind:
-- every, cron or at. interval, jitter, end, seen, last: µs. missed: skip, once or all. limit: how
-- often it fires, end: until when, 0 for ever. fired: how many times have been. seen: no time up to
-- this one is ever fired again. last: the time that was fired last. times: what comes next, in
-- order. Of `every` one, the others follow from it; of others all, and a `.` where there is no more
-- behind them. Of `cron`, which a script cannot read, clients send more in time.
local timetable = {}

local FAR = 9000000000000000 -- beyond 2^53 numbers are not exact
local GRACE = 60000000 -- a time that passed longer ago than this has been missed
local MOST = 128 -- times of a record
local LONGEST_NAME = 100 -- so that name, '@' and time are an id
local NAMES = {'version', 'priority', 'interval', 'jitter', 'limit', 'ends', 'paused', 'fired',
  'seen', 'last'}
local MISSED = {skip = true, once = true, all = true}

function timetable.is_name(name)
  return #name <= LONGEST_NAME and string.find(name, '^[^%s%c{}]+$') ~= nil
end

function timetable.is_missed(word) return MISSED[word] ~= nil end

function timetable.is_whole(number) return number >= 0 and number < FAR and number % 1 == 0 end

-- Times as text, in order; nil for what is none.
function timetable.times(text)
  local times, before = {}, 0
  for word in string.gmatch(text, '%S+') do
    local at = string.find(word, '^%d+$') and #word <= 16 and tonumber(word)
    if not at or at <= before or at >= FAR or #times == MOST then return nil end
    times[#times + 1] = at
    before = at
  end
  return times
end

-- The fields of a record, or nil for what is not one.
function timetable.parse(line)
  if not line then return nil end
  local head, times, dot, timing, task, terms =
    string.match(line, '^([%w ]+):([ %d]*)(%.?)\n([^\n]*)\n([^\n]*)\n?([^\n]*)$')
  if not head then return nil end
  local f = {timing = timing, task = task, terms = terms, closed = dot == '.',
    times = timetable.times(times)}
  f.version, f.kind, f.priority, f.interval, f.jitter, f.missed, f.limit, f.ends, f.paused, f.fired,
    f.seen, f.last = string.match(head, '^(%d+) (%l+) (%d) (%d+) (%d+) (%l+) (%d+) (%d+) ([01]) '
    .. '(%d+) (%d+) (%d+)$')
  if not f.times or not f.version or not MISSED[f.missed] then return nil end
  for _, name in ipairs(NAMES) do
    f[name] = tonumber(f[name])
    if f[name] >= FAR then return nil end
  end
  if f.kind ~= 'every' and f.kind ~= 'cron' and f.kind ~= 'at' then return nil end
  if f.kind == 'every' and (f.interval == 0 or #f.times > 1) then return nil end
  return f
end

function timetable.format(f)
  local line = string.format('%.0f %s %d %.0f %.0f %s %.0f %.0f %d %.0f %.0f %.0f:', f.version,
    f.kind, f.priority, f.interval, f.jitter, f.missed, f.limit, f.ends, f.paused, f.fired, f.seen,
    f.last)
  for i = 1, #f.times do line = line .. string.format(' %.0f', f.times[i]) end
  line = line .. (f.closed and '.' or '') .. '\n' .. f.timing .. '\n' .. f.task
  return f.terms == '' and line or line .. '\n' .. f.terms
end

-- Nothing comes any more.
function timetable.close(f) f.times, f.closed = {}, true end

-- Drops what is not to be fired any more: times that were seen, or are after its end.
function timetable.trim(f)
  local kept = {}
  for i = 1, #f.times do
    local at = f.times[i]
    if f.kind == 'every' and at <= f.seen then
      at = f.seen - math.fmod(f.seen - at, f.interval) + f.interval
    end
    if f.ends > 0 and at > f.ends then
      f.closed = true
      break
    end
    if at > f.seen then kept[#kept + 1] = at end
  end
  f.times = kept
end

-- When a claim must look at it: at its next time; at once and then again and again, where more
-- times are to be sent; nil where none will come.
function timetable.score(f, now, pause)
  if f.paused == 1 then return nil end
  if f.times[1] then return f.times[1] end
  if not f.closed then return now + pause end
end

-- Are more times to be sent before long?
function timetable.is_thin(f, few) return f.kind == 'cron' and not f.closed and #f.times < few end

-- The last of its times that has come; nil where that is not known before more are sent.
local function latest(f, now)
  if f.kind == 'every' then
    local till = f.ends > 0 and math.min(now, f.ends) or now
    return till - math.fmod(till - f.times[1], f.interval)
  end
  local count = 1
  while f.times[count + 1] and f.times[count + 1] <= now do count = count + 1 end
  -- Two times of an expression are a minute apart at least.
  if count == #f.times and not f.closed and now - f.times[count] > GRACE then
    return nil, f.times[count]
  end
  return f.times[count]
end

local function note(f, at)
  f.fired, f.last = f.fired + 1, at
  if f.limit > 0 and f.fired >= f.limit then timetable.close(f) end
end

-- Takes the times that are to be fired now, up to `most`; the record says so from then on. What has
-- been missed is fired as it says: all of it, the last, or nothing.
function timetable.take(f, now, most)
  local taken = {}
  if not f.times[1] or f.times[1] > now then return taken end
  if f.missed == 'all' then
    while #taken < most and f.times[1] and f.times[1] <= now do
      local at = f.times[1]
      taken[#taken + 1] = at
      f.seen = at
      note(f, at)
      timetable.trim(f)
    end
    return taken
  end
  local at, known = latest(f, now)
  f.seen = at or known - 1
  if at and (f.missed == 'once' or now - at <= GRACE) then
    taken[1] = at
    note(f, at)
  end
  timetable.trim(f)
  if not at then f.times = {} end
  return taken
end

-- How long after its time a job is due, in µs: the same whoever asks.
function timetable.delay(f, id)
  if f.jitter == 0 then return 0 end
  return math.floor(tonumber(string.sub(redis.sha1hex(id), 1, 8), 16) / 2 ^ 32 * f.jitter)
end

return timetable
