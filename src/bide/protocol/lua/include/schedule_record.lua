-- The record of a schedule: a line for the scripts, a line of JSON that says when it fires (as its
-- client wrote it), the task's name, and the constraints of its jobs, if they have some:
--
--   version kind priority interval jitter missed limit end paused fired seen last: times
--
-- version: grows with each change of when it fires; a call that sends more times says for which.
-- kind: every, cron or at. interval, jitter, end, seen, last: µs. missed: skip, once or all. limit:
-- how often it fires, end: until when, 0 for no end. fired: how many times have been. seen: no time
-- up to this one is ever fired again. last: the time that was fired last. times: what comes next,
-- in order. Of `every` one, the others follow from it; of others all, and a `.` where there is no
-- more behind them. Of `cron`, which a script cannot read, clients send more in time.
local schedule_record = {MISSED = {skip = true, once = true, all = true}}

local FAR = 9000000000000000 -- beyond 2^53 numbers are not exact
local GRACE = 60000000 -- a time that passed longer ago than this has been missed
local MOST = 128 -- times of a record
local LONGEST_NAME = 100 -- so that name, '@' and time are an id
local MISSED = schedule_record.MISSED
local NAMES = {'version', 'priority', 'interval', 'jitter', 'limit', 'ends', 'paused', 'fired',
  'seen', 'last'}

function schedule_record.is_name(name)
  return #name <= LONGEST_NAME and string.find(name, '^[^%s%c{}]+$') ~= nil
end

function schedule_record.is_whole(number)
  return number >= 0 and number < FAR and number % 1 == 0
end

-- Times as text, in order; nil for what is none.
function schedule_record.times(text)
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
function schedule_record.parse(line)
  if not line then return nil end
  local head, times, dot, timing, task, constraint_line =
    string.match(line, '^([%w ]+):([ %d]*)(%.?)\n([^\n]*)\n([^\n]*)\n?([^\n]*)$')
  if not head then return nil end
  local sched = {timing = timing, task = task, constraints = constraint_line, closed = dot == '.',
    times = schedule_record.times(times)}
  sched.version, sched.kind, sched.priority, sched.interval, sched.jitter, sched.missed,
    sched.limit, sched.ends, sched.paused, sched.fired, sched.seen, sched.last =
    string.match(head, '^(%d+) (%l+) (%d) (%d+) (%d+) (%l+) (%d+) (%d+) ([01]) '
    .. '(%d+) (%d+) (%d+)$')
  if not sched.times or not sched.version or not MISSED[sched.missed] then return nil end
  for _, name in ipairs(NAMES) do
    sched[name] = tonumber(sched[name])
    if sched[name] >= FAR then return nil end
  end
  if sched.kind ~= 'every' and sched.kind ~= 'cron' and sched.kind ~= 'at' then return nil end
  if sched.kind == 'every' and (sched.interval == 0 or #sched.times > 1) then return nil end
  return sched
end

function schedule_record.format(sched)
  local line = string.format('%.0f %s %d %.0f %.0f %s %.0f %.0f %d %.0f %.0f %.0f:', sched.version,
    sched.kind, sched.priority, sched.interval, sched.jitter, sched.missed, sched.limit,
    sched.ends, sched.paused, sched.fired, sched.seen, sched.last)
  for i = 1, #sched.times do line = line .. string.format(' %.0f', sched.times[i]) end
  line = line .. (sched.closed and '.' or '') .. '\n' .. sched.timing .. '\n' .. sched.task
  return sched.constraints == '' and line or line .. '\n' .. sched.constraints
end

-- Drops what is not to be fired any more: times that were seen, or are after its end.
function schedule_record.trim(sched)
  local kept = {}
  for i = 1, #sched.times do
    local at = sched.times[i]
    if sched.kind == 'every' and at <= sched.seen then
      at = sched.seen - math.fmod(sched.seen - at, sched.interval) + sched.interval
    end
    if sched.ends > 0 and at > sched.ends then
      sched.closed = true
      break
    end
    if at > sched.seen then kept[#kept + 1] = at end
  end
  sched.times = kept
end

-- When a claim must look at it: at its next time; at once and then again and again, where more
-- times are to be sent; nil where none will come.
function schedule_record.score(sched, pause)
  if sched.paused == 1 then return nil end
  if sched.times[1] then return sched.times[1] end
  if not sched.closed then return now + (pause or 0) end
end

-- Writes where a schedule stands, and when it is to be looked at: where more times are to be sent,
-- after `pause`.
function schedule_record.write(name, sched, pause)
  redis.call('HSET', schedule, name, schedule_record.format(sched))
  local at = schedule_record.score(sched, pause)
  if at then
    redis.call('ZADD', schedules, at, name)
  else
    redis.call('ZREM', schedules, name)
  end
  return at
end

-- The same for a caller; its answer. Removes first: a full server refuses what adds before.
function schedule_record.store(name, sched)
  redis.call('ZREM', schedules, name)
  local at = schedule_record.write(name, sched)
  if at then wakeup.due(at) end
  return {'ok', now, schedule_record.format(sched)}
end

-- The last of its times that has come; nil where that is not known before more are sent.
local function latest(sched)
  if sched.kind == 'every' then
    local till = sched.ends > 0 and math.min(now, sched.ends) or now
    return till - math.fmod(till - sched.times[1], sched.interval)
  end
  local count = 1
  while sched.times[count + 1] and sched.times[count + 1] <= now do count = count + 1 end
  -- Two times of an expression are a minute apart at least.
  if count == #sched.times and not sched.closed and now - sched.times[count] > GRACE then
    return nil, sched.times[count]
  end
  return sched.times[count]
end

local function note(sched, at)
  sched.fired, sched.last = sched.fired + 1, at
  if sched.limit > 0 and sched.fired >= sched.limit then sched.times, sched.closed = {}, true end
end

-- Takes the times that are to be fired now, up to `most`; the record says so from then on. What has
-- been missed is fired as it says: all of it, the last, or nothing.
function schedule_record.take(sched, most)
  local taken = {}
  if not sched.times[1] or sched.times[1] > now then return taken end
  if sched.missed == 'all' then
    while #taken < most and sched.times[1] and sched.times[1] <= now do
      local at = sched.times[1]
      taken[#taken + 1] = at
      sched.seen = at
      note(sched, at)
      schedule_record.trim(sched)
    end
    return taken
  end
  local at, known = latest(sched)
  sched.seen = at or known - 1
  if at and (sched.missed == 'once' or now - at <= GRACE) then
    taken[1] = at
    note(sched, at)
  end
  schedule_record.trim(sched)
  if not at then sched.times = {} end
  return taken
end

-- How long after its time a job is due, in µs: the same for each caller.
function schedule_record.delay(sched, id)
  if sched.jitter == 0 then return 0 end
  return math.floor(tonumber(string.sub(redis.sha1hex(id), 1, 8), 16) / 2 ^ 32 * sched.jitter)
end

return schedule_record
