-- Groups whose turn it is. A turn is one job: the group's next. Then the group stands behind all
-- others whose turn had come, if it may run another at once; else it has its next turn when one of
-- its jobs has ended.
--
-- A group's next job that is a suspect has to run as the only job of its worker: the group has its
-- turn among the suspects then, and waits for that.
local rota = {}

local SUSPECT = 2
local LETTERS = 'abcdefghijk'

-- When the first turn at a level is, and whose; nil where there is none.
function rota.first(sets, level)
  local letter = string.sub(LETTERS, level, level)
  local marker = redis.call('ZRANGEBYLEX', sets.turns, '[' .. letter, '(' .. letter .. '!', 'LIMIT',
    0, 1)[1]
  if not marker then return nil end
  return tonumber(string.sub(marker, 3, 19)) or 0, string.sub(marker, 21), marker
end

-- The next jobs of groups whose turn it is, one of each: id and due time of each as `ZRANGE` gives
-- them, and their groups. `steps.left` bounds how many turns are looked at.
local function pick(sets, group, record, level, now, wanted, steps, touched)
  local picked, owners = {}, {}
  while #owners < wanted and steps.left > 0 do
    local at, name, marker = rota.first(sets, level)
    if not at or at > now then break end
    steps.left = steps.left - 1
    redis.call('ZREM', sets.turns, marker)
    local f = group.read(sets, name)
    if f.level == level and f.turn == at then -- else it is none of its
      f.level = 0
      touched[name] = f
      local due_us, id = group.head(sets, name)
      local line = id and redis.call('HGET', sets.run, id)
      local known = line and record.parse(line)
      local is_suspect = known and known.strikes >= SUSPECT
      local may_run = id and due_us <= now and f.paused == 0
        and group.running(sets, name) < group.limit(f)
      if may_run and is_suspect and level ~= group.ALONE then
        f.level, f.turn = group.ALONE, now
        steps.met_suspect = true
      elseif may_run and (is_suspect or level ~= group.ALONE) then
        picked[#picked + 1] = id
        picked[#picked + 1] = string.format('%.0f', due_us)
        owners[#owners + 1] = f
      end
    end
  end
  return picked, owners
end

-- Takes up to `wanted` jobs of groups whose turn it is. `take` takes jobs out of `due:grouped`, adds
-- to `taken` those that now run, and returns how many of them it has looked at.
function rota.take(sets, group, record, level, now, wanted, steps, take, taken)
  repeat
    local touched, first = {}, #taken + 1
    local picked, owners = pick(sets, group, record, level, now, wanted, steps, touched)
    local seen = #owners > 0 and take(group.GROUPED, picked, level) or 0
    local runs = {}
    for i = first, #taken do runs[taken[i]] = true end
    for i = 1, seen do
      local at, id = picked[2 * i], picked[2 * i - 1]
      group.drop(sets, owners[i], at, id)
      if runs[id] then group.hold(sets, owners[i], id) end
    end
    group.turns(sets, touched, now)
    wanted = wanted - (#taken - first + 1)
  until seen == 0 or seen < #owners or wanted <= 0
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
