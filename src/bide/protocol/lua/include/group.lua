-- Groups: jobs of one group run one at a time, or a few, in due order; groups take turns.
--
-- A group's jobs stand in `due:grouped`, and in `order` as `<group> <due> <id>`, which says the
-- next; those of them that run, in `held` as `<group> <id>`, which says how many. While a group has
-- a next job and may begin it, one marker of it stands in `turns` as `<level> <when> <group>`: the
-- levels are those of the due sets, by a letter. All of these have the score 0, and so are in order
-- of their bytes. The group's record says where its marker is, and what was said of the group:
--
--   priority asked set paused level turn [free rate spent]
--
-- asked: how many at once, as the latest enqueue wanted it; set: as somebody has configured it; 0
-- where nobody did. rate, spent: three numbers each, as `gate` has them; free: when that lets the
-- next begin.
--
-- What is done to a job of a group changes `order` or `held` at once; then `turns` puts the marker
-- where it belongs. `sets` has the queue's keys by their names, `touched` records by group.
local group = {GROUPED = 13, ALONE = 11}

local LEVELS, DEFAULT, STALE = 10, 5, 8
local FORM = '^(%d) (%d+) (%d+) ([01]) (%d+) (%d+)(.*)$'
local LIMITED = '^ (%d+) (%d+ %d+ %d+) (%d+ %d+ %d+)$'
local LONGEST = 180 -- bytes of a record
local LETTERS = 'abcdefghijk'

-- The group of a job with these terms, or nil.
function group.of(line) return line and string.match(' ' .. line, ' g=(%S+)') end

function group.parse(text, name)
  local priority, asked, set, paused, level, turn, limits = string.match(text or '', FORM)
  local f = {name = name, priority = DEFAULT, asked = 0, set = 0, paused = 0, level = 0, turn = 0,
    free = 0}
  if not priority or #text > LONGEST or tonumber(level) > group.ALONE or #turn > 17 then
    return f
  end
  if limits ~= '' then
    local free, rate, spent = string.match(limits, LIMITED)
    if not free or #free > 17 then return f end
    f.free, f.rate, f.spent = tonumber(free), rate, spent
  end
  f.priority, f.asked, f.set = tonumber(priority), tonumber(asked), tonumber(set)
  f.paused, f.level, f.turn = tonumber(paused), tonumber(level), tonumber(turn)
  f.is_known = true
  return f
end

function group.read(sets, name) return group.parse(redis.call('HGET', sets.groups, name), name) end

function group.format(f)
  local line = string.format('%d %d %d %d %d %.0f', f.priority, f.asked, f.set, f.paused, f.level,
    f.turn)
  if not f.rate then return line end
  return line .. string.format(' %.0f ', f.free) .. f.rate .. ' ' .. f.spent
end

-- The group of a job with these terms, among those that are `touched`; `priority` is for one that
-- is not known any more. Nil for a job of no group.
function group.touch(sets, touched, line, priority)
  local name = group.of(line)
  if not name then return nil end
  local f = touched[name]
  if not f then
    f = group.read(sets, name)
    touched[name] = f
    if not f.is_known then
      f.priority = priority or DEFAULT
      f.asked = tonumber(string.match(' ' .. line, ' n=(%d+)') or 0)
      f.is_known = true
    end
  end
  return f
end

function group.limit(f) return f.set > 0 and f.set or math.max(f.asked, 1) end

-- What all of a group's entries lie between.
function group.within(name) return '[' .. name .. ' ', '(' .. name .. '!' end

function group.running(sets, name)
  return redis.call('ZLEXCOUNT', sets.held, group.within(name))
end

function group.entry(name, at, id) return string.format('%s %017.0f %s', name, at, id) end

-- How markers of a level begin.
function group.letter(level) return string.sub(LETTERS, level, level) end

function group.marker(f)
  return string.format('%s %017.0f ', group.letter(f.level), f.turn) .. f.name
end

local function note(gate, f, b, now)
  f.spent = gate.stored(b)
  b = gate.bucket(f.rate, f.spent, now)
  f.free = b.tokens < 1 and gate.refilled(b) or 0
end

-- A job of a group that has a rate begins.
function group.spend(gate, f, now)
  local b = gate.bucket(f.rate, f.spent, now)
  if not b then return end
  b.taken, b.last = b.taken + 1, now
  note(gate, f, b, now)
end

-- Jobs of a group that has a rate were given back before they began: `unbegun`, as `gate` has it.
function group.put_back(gate, f, unbegun, now)
  local b = gate.bucket(f.rate, f.spent, now)
  if b and gate.put_back(b, unbegun) then note(gate, f, b, now) end
end

-- What the latest of a group's jobs says of it, holds.
function group.join(f, line, level)
  if level <= LEVELS then f.priority = LEVELS - level end
  f.asked = tonumber(string.match(' ' .. line, ' n=(%d+)')) or f.asked
end

function group.put(sets, f, at, id)
  redis.call('ZADD', sets.due[group.GROUPED], at, id)
  redis.call('ZADD', sets.order, 0, group.entry(f.name, at, id))
end

function group.drop(sets, f, at, id)
  f.is_changed = true
  redis.call('ZREM', sets.order, group.entry(f.name, at, id))
end

function group.hold(sets, f, id) redis.call('ZADD', sets.held, 0, f.name .. ' ' .. id) end

function group.release(sets, f, id) redis.call('ZREM', sets.held, f.name .. ' ' .. id) end

-- When a group's next job is due, and its id. Entries of jobs that are not there are dropped; where
-- there are many of them, some: then a time, and no id.
function group.head(sets, name)
  for _ = 1, STALE do
    local least, most = group.within(name)
    local entry = redis.call('ZRANGEBYLEX', sets.order, least, most, 'LIMIT', 0, 1)[1]
    if not entry then return nil end
    local at, id = string.match(entry, ' (%d+) (%S+)$', #name + 1)
    at = tonumber(at)
    if at and tonumber(redis.call('ZSCORE', sets.due[group.GROUPED], id)) == at then
      return at, id
    end
    redis.call('ZREM', sets.order, entry)
  end
  return 0
end

-- How long one token of a group's rate takes to come.
local function wait_of(f)
  local count, period = string.match(f.rate or '', '^(%d+) (%d+) ')
  return math.ceil((tonumber(period) or 0) / math.max(tonumber(count) or 1, 1))
end

-- Puts a group's marker where it belongs, and remembers the group while there is anything to
-- remember: at once, or with those in `notes`. When its turn is, or nil. One whose turn has come
-- keeps its place among the others.
function group.turn(sets, f, now, notes)
  local running = f.running or group.running(sets, f.name)
  local may_begin = f.paused == 0 and running < group.limit(f)
  local at = (may_begin or running == 0) and group.head(sets, f.name)
  local level, turn = 0, 0
  if f.free > now then f.free = math.min(f.free, now + wait_of(f)) end -- or the clock was set back
  if at and may_begin then
    level = f.level == group.ALONE and not f.is_changed and group.ALONE or LEVELS - f.priority
    turn = math.max(at, now, f.free)
    if f.level > 0 and f.turn <= now and turn == now then turn = f.turn end
  end
  if f.level > 0 then redis.call('ZREM', sets.turns, group.marker(f)) end
  f.level, f.turn = level, turn
  if level > 0 then redis.call('ZADD', sets.turns, 0, group.marker(f)) end
  if at or running > 0 or f.set > 0 or f.paused == 1 or f.rate then
    if notes then
      notes[#notes + 1] = f.name
      notes[#notes + 1] = group.format(f)
    else
      redis.call('HSET', sets.groups, f.name, group.format(f))
    end
  else
    redis.call('HDEL', sets.groups, f.name)
  end
  return level > 0 and turn or nil
end

-- The same for all groups that were touched; the earliest of their turns, or nil.
function group.turns(sets, touched, now)
  local earliest
  local notes = {}
  for _, f in pairs(touched) do
    local turn = group.turn(sets, f, now, notes)
    if turn and (not earliest or turn < earliest) then earliest = turn end
  end
  if #notes > 0 then redis.call('HSET', sets.groups, unpack(notes)) end
  return earliest
end

-- A job has been taken out of `due:grouped` and is not to run: out of its group, too.
function group.leave(sets, touched, at, id)
  local f = group.touch(sets, touched, redis.call('HGET', sets.terms, id))
  if f then group.drop(sets, f, at, id) end
  return f
end

-- Groups of which `empty` has set jobs aside: those of which nothing is left are forgotten.
function group.forget(sets, ids, now)
  local touched = {}
  for _, line in ipairs(redis.call('HMGET', sets.terms, unpack(ids))) do
    group.touch(sets, touched, line or nil)
  end
  group.turns(sets, touched, now)
end

return group
