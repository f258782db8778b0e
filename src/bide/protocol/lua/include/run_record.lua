-- The run record: what is known of a job once it has been claimed. Fixed-width where every settle
-- looks, so that the common path compares and cuts strings and parses nothing:
--
--   1-16   token of the latest claim          18-33  token settled before that
--   17     how it was settled, '-' while held 34     how, '-' for never
--   36-    priority attempt crashes strikes alone started worker due [first] [retried'r']
--          [missing'm'] [dropped'd'] [ended'e']
--
-- crashes: leases that ended while the job was the only suspect; strikes: those that ended among
-- others. alone: 1 while it is held as the only job of its worker. first: when it was first due,
-- where a retry or snooze has moved that. retried: the name of the call that last made it run again
-- after it had ended. missing: when the first of those workers claimed it that have since given it
-- back, because none of them serves its task. dropped: how many bytes its result had, which is not
-- kept any more. ended: when it finished, where its score does not say so. started: by the worker,
-- once its outcome is known; until then when it was claimed, or if it was claimed ahead, when it is
-- due, which is at most `AHEAD` later.
local run_record = {AHEAD = 20000}

local FAR = 9000000000000000 -- beyond 2^53 a token would not grow by one
local NEVER = '0000000000000000-'

function run_record.head(token, before)
  return string.format('%016.0f-', token) .. before
end

-- All but the due time, which alone differs between the jobs of a first claim.
function run_record.tail(priority, attempt, crashes, strikes, alone, started, worker)
  return string.format(' %d %d %d %d %d %.0f %s ',
    priority, attempt, crashes, strikes, alone, started, worker)
end

function run_record.fresh(token) return run_record.head(token, NEVER) end

function run_record.token(line) return string.sub(line, 1, 16) end

function run_record.stamp(line) return string.sub(line, 1, 17) end

-- Its outcome, and when it started, where that is known: 16 digits.
function run_record.settled(line, outcome, start)
  local token = string.sub(line, 1, 16)
  if start and string.sub(line, 46, 61) == token then
    return token .. outcome .. string.sub(line, 18, 45) .. start .. string.sub(line, 62)
  end
  return token .. outcome .. string.sub(line, 18)
end

-- Was this token settled in this way, now or before the latest claim?
function run_record.remembers(line, token, outcome)
  local stamp = token .. outcome
  return string.sub(line, 1, 17) == stamp or string.sub(line, 18, 34) == stamp
end

-- The fields of a record, or nil for what is not one: a caller writes by what it has parsed, and
-- must not meet an invalid number half way.
function run_record.parse(line)
  if not line then return nil end
  local token, before, priority, attempt, crashes, strikes, alone, started, worker, due, rest =
    string.match(line, '^(%d+)[%a-](%d+)[%a-] (%d) (%d+) (%d+) (%d+) ([01]) (%d+) (%S+) (%S+)(.*)$')
  due = tonumber(due)
  if not due or not (due > -FAR and due < FAR) or #token ~= 16 or #before ~= 16
    or tonumber(token) >= FAR or #attempt + #crashes + #strikes > 27 or #started > 16 then
    return nil
  end
  local first, missing, retried
  if rest ~= '' then
    rest = rest .. ' '
    first = tonumber(string.match(rest, '^ (%d+) '))
    if first and first >= FAR then first = nil end
    missing = tonumber(string.match(rest, ' (%d+)m '))
    if missing and missing >= FAR then missing = nil end
    retried = string.match(rest, ' (%w+)r ')
  end
  return {
    head = string.sub(line, 1, 34),
    priority = tonumber(priority), attempt = tonumber(attempt), crashes = tonumber(crashes),
    strikes = tonumber(strikes), alone = tonumber(alone), started = tonumber(started),
    worker = worker, due = due, first = first, retried = retried, missing = missing,
  }
end

-- When a job is due that was claimed and has no outcome. It was due, whatever the clock has been
-- set to since; a job that was claimed ahead may not be due yet.
function run_record.due_again(rec)
  return rec.due <= now + run_record.AHEAD and rec.due or now
end

-- From when a job's time to begin counts: one that no worker serves is due only to be looked at.
function run_record.due_from(rec, due_us) return rec and rec.missing and rec.first or due_us end

-- Whether a job has never begun; one that someone has made run again after its end has.
function run_record.is_unbegun(rec)
  return not rec or (rec.attempt == 0 and rec.crashes + rec.strikes == 0 and not rec.retried
    and (not rec.first or rec.missing ~= nil))
end

-- What is assumed of a job whose record cannot be read.
function run_record.unknown(head)
  return {head = head, priority = 5, attempt = 1, crashes = 0, strikes = 0, alone = 0,
    started = now, worker = '?', due = now}
end

-- The record of a job that was never claimed; written only where something of it must be known.
function run_record.unclaimed(priority)
  return {head = run_record.fresh(0), priority = priority, attempt = 0, crashes = 0, strikes = 0,
    alone = 0, started = 0, worker = '-', due = now}
end

-- How often it was run: the attempt, how many leases ended since the last outcome, when it was
-- first due, how many of those leases ended while it was the only suspect, and since when no worker
-- that claimed it has served its task (0: the latest did).
function run_record.tries(rec)
  return string.format('%d %d %.0f %d %.0f', rec.attempt, rec.crashes + rec.strikes,
    rec.first or rec.due, rec.crashes, rec.missing or 0)
end

function run_record.format(head, rec)
  local line = head .. run_record.tail(rec.priority, rec.attempt, rec.crashes, rec.strikes,
    rec.alone, rec.started, rec.worker) .. string.format('%.0f', rec.due)
  if rec.first then line = line .. string.format(' %.0f', rec.first) end
  if rec.retried then line = line .. ' ' .. rec.retried .. 'r' end
  if rec.missing then line = line .. string.format(' %.0fm', rec.missing) end
  if rec.ended then line = line .. string.format(' %.0fe', rec.ended) end
  return line
end

return run_record
