-- Groups whose turn it is. A turn is one job: the group's next. Then the group stands behind all
-- others whose turn had come, if it may run another at once; else it has its next turn when one of
-- its jobs has ended.
--
-- A group's next job that is a suspect has to run as the only job of its worker: the group has its
-- turn among the suspects then, and waits for that.
local rota = {BEGIN = 'begin'}

local SUSPECT, AHEAD, HELD = 2, 50, 1000

-- When the first turn at a level is, and whose; nil where there is none.
function rota.first(sets, group, level)
  local letter = group.letter(level)
  local marker = redis.call('ZRANGEBYLEX', sets.turns, '[' .. letter, '(' .. letter .. '!', 'LIMIT',
    0, 1)[1]
  if not marker then return nil end
  return tonumber(string.sub(marker, 3, 19)) or 0, string.sub(marker, 21), marker
end

-- The markers of turns that have come, the first of them.
local function due_markers(sets, group, level, now, most)
  local letter = group.letter(level)
  return redis.call('ZRANGEBYLEX', sets.turns, '[' .. letter,
    string.format('(%s %017.0f', letter, now + 1), 'LIMIT', 0, most)
end

-- The next jobs of groups whose turn it is, one of each: id and due time of each as `ZRANGE` gives
-- them, and their groups; third, how many turns were looked at, which `steps.left` bounds.
local function pick(sets, group, record, level, now, wanted, steps, touched)
  local markers = due_markers(sets, group, level, now, math.min(wanted, steps.left))
  if #markers == 0 then return {}, {}, 0 end
  steps.left = steps.left - #markers
  redis.call('ZREM', sets.turns, unpack(markers))
  local names = {}
  for i, marker in ipairs(markers) do names[i] = string.sub(marker, 21) end
  local known = redis.call('HMGET', sets.groups, unpack(names))
  local ids, times, owners = {}, {}, {}
  for i, marker in ipairs(markers) do
    local f = group.parse(known[i], names[i])
    if f.level == level and group.marker(f) == marker then -- else it is none of its
      f.level = 0
      touched[f.name] = f
      local due_us, id = group.head(sets, f.name)
      f.running = group.running(sets, f.name)
      if id and due_us <= now and f.free <= now and f.paused == 0
        and f.running < group.limit(f) then
        local n = #ids + 1
        ids[n], times[n], owners[n] = id, due_us, f
      end
    end
  end
  local picked, of = {}, {}
  local lines = #ids > 0 and redis.call('HMGET', sets.run, unpack(ids))
  for i, f in ipairs(owners) do
    local was = lines[i] and record.parse(lines[i])
    local is_suspect = was and was.strikes >= SUSPECT
    if is_suspect and level ~= group.ALONE then
      f.level, f.turn = group.ALONE, now
      steps.met_suspect = true
    elseif is_suspect or level ~= group.ALONE then
      picked[#picked + 1] = ids[i]
      picked[#picked + 1] = string.format('%.0f', times[i])
      of[#of + 1] = f
    end
  end
  return picked, of, #markers
end

-- Takes up to `wanted` jobs of groups whose turn it is. `take` takes jobs out of `due:grouped`,
-- adds to `taken` those that now run, and returns how many of them it has looked at.
function rota.take(sets, group, gate, record, level, now, wanted, steps, take, taken)
  repeat
    local touched, first = {}, #taken + 1
    local picked, owners, met = pick(sets, group, record, level, now, wanted, steps, touched)
    local seen = #owners > 0 and take(group.GROUPED, picked, level) or 0
    local runs, entries, holders = {}, {}, {}
    for i = first, #taken do runs[taken[i]] = true end
    for i = 1, seen do
      local at, id, f = picked[2 * i], picked[2 * i - 1], owners[i]
      entries[i] = group.entry(f.name, at, id)
      if runs[id] then
        f.running = f.running + 1
        if f.rate then group.spend(gate, f, now) end
        holders[#holders + 1] = 0
        holders[#holders + 1] = f.name .. ' ' .. id
      end
    end
    for i = seen + 1, #owners do owners[i].level = level end -- not looked at: keeps its place
    if seen > 0 then redis.call('ZREM', sets.order, unpack(entries)) end
    if #holders > 0 then redis.call('ZADD', sets.held, unpack(holders)) end
    group.turns(sets, touched, now)
    wanted = wanted - (#taken - first + 1)
  until met == 0 or seen < #owners or wanted <= 0
end

-- Whether the rate of a group holds back a job that is due. Looks at the next `HELD` turns of a
-- level.
function rota.holds_back(sets, group, level, now)
  local letter = group.letter(level)
  local found = redis.call('ZRANGEBYLEX', sets.turns, string.format('(%s %017.0f', letter, now + 1),
    '(' .. letter .. '!', 'LIMIT', 0, HELD)
  local names = {}
  for i, marker in ipairs(found) do names[i] = string.sub(marker, 21) end
  local known = #names > 0 and redis.call('HMGET', sets.groups, unpack(names)) or {}
  for i, name in ipairs(names) do
    local f = group.parse(known[i], name)
    local due_us = f.turn > now and f.turn == f.free and group.head(sets, f.name)
    if due_us and due_us <= now then return true end
  end
  return false
end

-- The clock was set back: turns that had come are ahead now, and come at once. Goes through the
-- markers from one on, some at a time; true if there are more.
function rota.rewind(sets, group, now, from)
  if not string.find(from, '^%(') then from = '-' end
  local found = redis.call('ZRANGEBYLEX', sets.turns, from, '+', 'LIMIT', 0, AHEAD)
  local touched = {}
  for _, marker in ipairs(found) do
    if (tonumber(string.sub(marker, 3, 19)) or 0) > now then
      local name = string.sub(marker, 21)
      touched[name] = group.read(sets, name)
    end
  end
  group.turns(sets, touched, now)
  if #found == AHEAD then
    redis.call('HSET', sets.meta, 'rewinding', '(' .. found[#found])
  else
    redis.call('HDEL', sets.meta, 'rewinding')
  end
  return #found == AHEAD
end

-- How many of a claim's `wanted` slots go to groups, where both they and single jobs are due at a
-- level: half, and of one that is left over, each has it in its turn.
function rota.share(meta, had_odd, singles, now, wanted)
  local half = math.floor(wanted / 2)
  local due = redis.call('ZCOUNT', singles, '-inf', now)
  if due == 0 then return wanted end
  if due <= half or wanted % 2 == 0 then return wanted - math.min(due, half) end
  if had_odd then redis.call('HDEL', meta, 'side') else redis.call('HSET', meta, 'side', 1) end
  return had_odd and half or half + 1
end

return rota
