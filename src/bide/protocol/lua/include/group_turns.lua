-- Groups whose turn it is. A turn is one job: the next job of the group. After it, the group comes
-- behind all groups whose turn had come, if it may run another job at once. Otherwise it has its
-- next turn when one of its jobs has ended.
--
-- A group's next job that is a suspect has to run as the only job of its worker: the group has its
-- turn among the suspects then, and waits for that.
local group_turns = {}

local SUSPECT, AHEAD, HELD, RESTED = 2, 50, 1000, 200

-- When the first turn at a level is; nil where there is none.
function group_turns.first(level)
  local letter = group.letter(level)
  local marker = redis.call('ZRANGEBYLEX', turns, '[' .. letter, '(' .. letter .. '!', 'LIMIT',
    0, 1)[1]
  return marker and (tonumber(string.sub(marker, 3, 19)) or 0)
end

-- The names of the groups of these markers, and their records.
local function read(markers)
  local names = {}
  for i, marker in ipairs(markers) do names[i] = string.sub(marker, 21) end
  return names, #names > 0 and redis.call('HMGET', groups, unpack(names)) or {}
end

-- The next jobs of groups whose turn it is, one of each: id and due time of each as `ZRANGE` gives
-- them, and their groups; third, how many turns were looked at, which `steps.left` bounds.
local function pick(level, wanted, steps)
  local letter = group.letter(level)
  local markers = redis.call('ZRANGEBYLEX', turns, '[' .. letter,
    string.format('(%s %017.0f', letter, now + 1), 'LIMIT', 0, math.min(wanted, steps.left))
  if #markers == 0 then return {}, {}, 0 end
  steps.left = steps.left - #markers
  redis.call('ZREM', turns, unpack(markers))
  local names, known = read(markers)
  local ids, times, owners = {}, {}, {}
  for i, marker in ipairs(markers) do
    local grp = group.known(known[i], names[i])
    if grp.level == level and group.marker(grp) == marker then -- else it is none of its
      grp.level = 0
      group.touched[grp.name] = grp
      local due_us, id = group.head(grp.name)
      grp.running = group.running(grp.name)
      if id and due_us <= now and grp.free <= now and grp.paused == 0
        and grp.running < group.limit(grp) then
        local n = #ids + 1
        ids[n], times[n], owners[n] = id, due_us, grp
      end
    end
  end
  local picked, picked_groups = {}, {}
  local lines = #ids > 0 and redis.call('HMGET', run, unpack(ids))
  for i, grp in ipairs(owners) do
    local was = lines[i] and run_record.parse(lines[i])
    local is_suspect = was and was.strikes >= SUSPECT
    if is_suspect and level ~= group.ALONE then
      grp.level, grp.turn = group.ALONE, now
      steps.met_suspect = true
    elseif is_suspect or level ~= group.ALONE then
      picked[#picked + 1] = ids[i]
      picked[#picked + 1] = string.format('%.0f', times[i])
      picked_groups[#picked_groups + 1] = grp
    end
  end
  return picked, picked_groups, #markers
end

-- Takes up to `wanted` jobs of groups whose turn it is. `take` takes jobs out of `due:grouped`,
-- adds to `taken` those that now run, and returns how many of them it has looked at.
function group_turns.take(level, wanted, steps, take, taken)
  repeat
    local first = #taken + 1
    local picked, owners, met = pick(level, wanted, steps)
    local seen = #owners > 0 and take(group.GROUPED, picked, level) or 0
    local runs, entries, holders = {}, {}, {}
    for i = first, #taken do runs[taken[i]] = true end
    for i = 1, seen do
      local at, id, grp = picked[2 * i], picked[2 * i - 1], owners[i]
      entries[i] = group.entry(grp.name, at, id)
      if runs[id] then
        grp.running = grp.running + 1
        if grp.rate then group.spend(grp) end
        holders[#holders + 1] = 0
        holders[#holders + 1] = grp.name .. ' ' .. id
      end
    end
    for i = seen + 1, #owners do owners[i].level = level end -- not looked at: keeps its place
    if seen > 0 then redis.call('ZREM', order, unpack(entries)) end
    if #holders > 0 then redis.call('ZADD', held, unpack(holders)) end
    group.turns()
    wanted = wanted - (#taken - first + 1)
  until met == 0 or seen < #owners or wanted <= 0
end

-- Whether the rate of a group holds back a job that is due. Looks at the next `HELD` turns of a
-- level.
function group_turns.holds_back(level)
  local letter = group.letter(level)
  local names, known = read(redis.call('ZRANGEBYLEX', turns,
    string.format('(%s %017.0f', letter, now + 1), '(' .. letter .. '!', 'LIMIT', 0, HELD))
  for i, name in ipairs(names) do
    local grp = group.known(known[i], name)
    local due_us = grp.turn > now and grp.turn == grp.free and group.head(grp.name)
    if due_us and due_us <= now then return true end
  end
  return false
end

-- The clock was set back: turns that had come are ahead now, and come at once. Or the rate of all
-- groups has changed: those that wait for tokens have them earlier. Goes through the markers from
-- one on, some at a time; true if there are more.
function group_turns.rewind(from)
  if not string.find(from, '^%(') then from = '-' end
  local found = redis.call('ZRANGEBYLEX', turns, from, '+', 'LIMIT', 0, AHEAD)
  for _, marker in ipairs(found) do
    if (tonumber(string.sub(marker, 3, 19)) or 0) > now then
      local name = string.sub(marker, 21)
      group.touched[name] = group.read(name)
    end
  end
  group.turns()
  if #found == AHEAD then
    redis.call('HSET', meta, 'rewinding', '(' .. found[#found])
  else
    redis.call('HDEL', meta, 'rewinding')
  end
  return #found == AHEAD
end

-- Forgets groups that have rested until now, some at a time; true if there may be more.
function group_turns.forget_rested()
  local names = redis.call('ZRANGEBYSCORE', resting, '-inf', now, 'LIMIT', 0, RESTED)
  if #names == 0 then return false end
  redis.call('ZREM', resting, unpack(names))
  local over = {}
  for i, text in ipairs(redis.call('HMGET', groups, unpack(names))) do
    if text and group.parse(text, names[i]).rests then over[#over + 1] = names[i] end
  end
  if #over > 0 then redis.call('HDEL', groups, unpack(over)) end
  return #names == RESTED
end

-- How many of a claim's `wanted` slots go to groups, where both they and single jobs are due at a
-- level: half, and of one that is left over, each has it in its turn.
function group_turns.share(level, had_odd, wanted)
  local half = math.floor(wanted / 2)
  local singles = redis.call('ZCOUNT', due[level], '-inf', now)
  if singles == 0 then return wanted end
  if singles <= half or wanted % 2 == 0 then return wanted - math.min(singles, half) end
  if had_odd then redis.call('HDEL', meta, 'side') else redis.call('HSET', meta, 'side', 1) end
  return had_odd and half or half + 1
end

return group_turns
