-- The facts in a doubtful run record of a job, for checks and repairs.
local fsck_record = {}

local STAMPS = '[CRFSHLXK-]'
local HEAD = '^' .. string.rep('%d', 16) .. STAMPS .. string.rep('%d', 16) .. STAMPS .. ' '
local LAST = 9000000000000000 -- tokens and times end before: 16 digits would not hold the next
local MOST = 1000000000
local CRASHES, MANY_STRIKES = 3, 10

-- The fields of a run record, and whether anything of it had to be assumed. Nothing where not even
-- the tokens can be read.
function fsck_record.read(line)
  if not line then return nil end
  local rec = run_record.parse(line)
  if not string.find(line, HEAD) or tonumber(run_record.token(line)) >= LAST then
    return nil, true
  end
  local ended = tonumber(string.match(line, ' (%d+)e$'))
  if rec and rec.priority <= 9 and rec.alone <= 1 and rec.attempt < MOST and rec.crashes < MOST
    and rec.strikes < MOST and rec.started < LAST and rec.due >= 0 and rec.due < LAST
    and rec.due % 1 == 0 and (rec.first or 0) < LAST and (ended or 0) < LAST then
    rec.ended = ended
    return rec
  end
  return run_record.unknown(string.sub(line, 1, 34)), true
end

function fsck_record.stamp(rec) return string.sub(rec.head, 17, 17) end

-- The state in which the last that is known of a job leaves it.
function fsck_record.state(rec)
  local stamp = fsck_record.stamp(rec)
  local is_given_up = rec.crashes >= CRASHES or rec.strikes >= MANY_STRIKES -- workers died under it
  if is_given_up and (stamp == '-' or stamp == 'K') then return 'failed' end
  if rec.attempt == 0 then return 'due' end -- never taken, or returned, or to begin again
  if stamp == '-' then return tonumber(string.sub(rec.head, 1, 16)) > 0 and 'active' or 'due' end
  return ({C = 'completed', F = 'failed', X = 'cancelled'})[stamp] or 'due'
end

-- May a job with this record be in this state?
function fsck_record.allows(rec, state)
  local stamp = fsck_record.stamp(rec)
  if state == 'active' then return stamp == '-' and tonumber(string.sub(rec.head, 1, 16)) > 0 end
  if state == 'blocked' then return rec.attempt == 0 end
  if state == 'completed' then return stamp == 'C' end
  if state == 'failed' then return stamp == 'F' or fsck_record.state(rec) == 'failed' end
  if state == 'due' then return rec.attempt == 0 or not string.find(stamp, '[CFX]') end
  return true -- cancelled is what was never taken, what was asked to stop, and what was retried
end

-- Which of the due sets a job belongs to; `level` is where it is, or nothing.
function fsck_record.level(rec, level)
  if rec and rec.missing and level == 12 then return 12 end
  if rec then return rec.strikes >= 2 and 11 or 10 - rec.priority end
  return level and level <= 10 and level or 5
end

-- Notes without the lines that cannot be read; nil where all can be.
function fsck_record.notes(text)
  local kept, odd = {}, false
  for line in string.gmatch(text .. '\n', '([^\n]*)\n') do
    if string.find(line, '^[EC] %d+ %d+ %d+ %S+') or string.find(line, '^[LP] %d+ .')
      or string.find(line, '^R %d+ %d+ %d+$') then
      kept[#kept + 1] = line
    else
      odd = true
    end
  end
  return odd and table.concat(kept, '\n') or nil
end

return fsck_record
