-- What a job's run record tells of it, where that is doubted: for checks and repairs.
local evidence = {}

local STAMPS = '[CRFSHLXK-]'
local HEAD = '^' .. string.rep('%d', 16) .. STAMPS .. string.rep('%d', 16) .. STAMPS .. ' '
local LAST = 9000000000000000 -- tokens and times end before: 16 digits would not hold the next
local MOST = 1000000000
local YEAR = 366 * 86400000000
local CRASHES, MANY_STRIKES = 3, 10

-- The fields of a run record, and whether anything of it had to be assumed. Nothing where not even
-- the tokens can be read.
function evidence.read(record, line, now)
  if not line then return nil end
  local f = record.parse(line)
  if not string.find(line, HEAD) or tonumber(record.token(line)) >= LAST then return nil, true end
  local ended = tonumber(string.match(line, ' (%d+)e$'))
  if f and f.priority <= 9 and f.alone <= 1 and f.attempt < MOST and f.crashes < MOST
    and f.strikes < MOST and f.started < LAST and f.due >= 0 and f.due < LAST and f.due % 1 == 0
    and (f.first or 0) < LAST and (ended or 0) < LAST then
    f.ended = ended
    return f
  end
  return record.unknown(string.sub(line, 1, 34), now), true
end

function evidence.stamp(f) return string.sub(f.head, 17, 17) end

-- Was it given up, because workers died under it?
local function given_up(f) return f.crashes >= CRASHES or f.strikes >= MANY_STRIKES end

-- The state in which the last that is known of a job leaves it.
function evidence.state(f)
  local stamp = evidence.stamp(f)
  if (stamp == '-' or stamp == 'K') and given_up(f) then return 'failed' end
  if f.attempt == 0 then return 'due' end -- never taken, or given back, or to begin again
  if stamp == '-' then return tonumber(string.sub(f.head, 1, 16)) > 0 and 'active' or 'due' end
  return ({C = 'completed', F = 'failed', X = 'cancelled'})[stamp] or 'due'
end

-- May a job with this record be in this state?
function evidence.allows(f, state)
  local stamp = evidence.stamp(f)
  if state == 'active' then return stamp == '-' and tonumber(string.sub(f.head, 1, 16)) > 0 end
  if state == 'blocked' then return f.attempt == 0 end
  if state == 'completed' then return stamp == 'C' end
  if state == 'failed' then return stamp == 'F' or evidence.state(f) == 'failed' end
  if state == 'due' then return f.attempt == 0 or not string.find(stamp, '[CFX]') end
  return true -- cancelled is what was never taken, what was asked to end, and what was retried
end

-- Which of the due sets a job belongs to; `level` is where it is, or nothing.
function evidence.level(f, level)
  if f and f.missing and level == 12 then return 12 end
  if f then return f.strikes >= 2 and 11 or 10 - f.priority end
  return level and level <= 10 and level or 5
end

-- A score as a moment in whole microseconds; nothing where it is none.
function evidence.moment(score, least, most)
  local at = tonumber(score)
  if at and at == at and at >= least and at <= most and at % 1 == 0 then return at end
end

-- The latest that the server's clock has shown: what was written before it was set back lies ahead
-- of now, and is no error. `mark` and `rewound` are fields of `meta`.
function evidence.latest(now, mark, rewound)
  for _, at in ipairs({mark or false, rewound or false}) do
    now = math.max(now, at and evidence.moment(at, 0, now + 100 * YEAR) or 0)
  end
  return now
end

-- Notes without the lines that nobody can read; nothing where all can be.
function evidence.notes(text)
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

return evidence
