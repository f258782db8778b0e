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
-- asked: how many at once, as the latest enqueue wanted it; set: the configured number; 0 where
-- there is none. rate, spent: three numbers each, as `rate_limit` has them; free: when that lets
-- the next begin. A rate that the queue gives all its groups (`group_rate` in `meta`) has a q
-- before it; it is stored only while tokens are missing.
--
-- A group without jobs and settings whose rate the queue gives rests until its tokens are complete:
-- its record has that time in place of a turn, and so has `resting`. Then nothing is left of it.
--
-- What is done to a job of a group changes `order` or `held` at once; then `turns` puts the marker
-- where it belongs. Until then the groups' records are in `touched`, by their names.
local group = {GROUPED = 13, ALONE = 11, touched = {}}

local LEVELS, DEFAULT, STALE = 10, 5, 8
local FORM = '^(%d) (%d+) (%d+) ([01]) (%d+) (%d+)(.*)$'
local LIMITED = '^ (%d+) (q?)(%d+ %d+ %d+) (%d+ %d+ %d+)$'
local LONGEST = 180 -- bytes of a record
local LETTERS = 'abcdefghijk'

-- The group of a job with these constraints, or nil.
function group.of(line) return line and string.match(' ' .. line, ' g=(%S+)') end

function group.parse(text, name)
  local priority, asked, set, paused, level, turn, limits = string.match(text or '', FORM)
  local grp = {name = name, priority = DEFAULT, asked = 0, set = 0, paused = 0, level = 0, turn = 0,
    free = 0}
  if not priority or #text > LONGEST or tonumber(level) > group.ALONE or #turn > 17 then
    return grp
  end
  if limits ~= '' then
    local free, shared, rate, spent = string.match(limits, LIMITED)
    if not free or #free > 17 then return grp end
    grp.free, grp.rate, grp.spent, grp.is_shared = tonumber(free), rate, spent, shared == 'q'
  end
  grp.priority, grp.asked, grp.set = tonumber(priority), tonumber(asked), tonumber(set)
  grp.paused, grp.level, grp.turn = tonumber(paused), tonumber(level), tonumber(turn)
  grp.is_known = true
  grp.rests = grp.level == 0 and grp.turn > 0
  return grp
end

local function note(grp, spent)
  grp.spent = spent
  local bucket = rate_limit.bucket(grp.rate, grp.spent)
  grp.free = bucket.tokens < 1 and rate_limit.refilled(bucket) or 0
end

-- Gives a group another rate, or none. Tokens that it lacks by then are missing in the new one.
function group.set_rate(grp, rate, is_shared)
  local before = rate_limit.bucket(grp.rate, grp.spent)
  grp.rate, grp.spent, grp.free, grp.is_shared = rate, nil, 0, is_shared
  if not rate then return end
  note(grp, before and rate_limit.carried(before, rate) or string.format('%.0f 0 0', now))
end

local shared_rate -- of each group without one of its own; false where the queue gives none

-- A group has no rate of its own: it has that of the queue's groups, if there is one.
function group.share_rate(grp)
  if shared_rate == nil then
    shared_rate = redis.call('HGET', meta, 'group_rate')
    if not rate_limit.bucket(shared_rate or '', nil) then shared_rate = false end
  end
  if (grp.rate or false) ~= shared_rate then
    group.set_rate(grp, shared_rate or nil, true)
  end
  grp.is_shared = true
end

-- The group of a record, with the rate that holds by now.
function group.known(text, name)
  local grp = group.parse(text, name)
  if grp.is_shared or not grp.rate then group.share_rate(grp) end
  return grp
end

function group.read(name) return group.known(redis.call('HGET', groups, name), name) end

-- When the tokens of a group whose rate the queue gives are complete; nil where they are.
local function full_at(grp)
  local bucket = grp.is_shared and rate_limit.bucket(grp.rate, grp.spent)
  local at = bucket and rate_limit.full_at(bucket)
  if at and at > now then return at end
end

function group.format(grp)
  local line = string.format('%d %d %d %d %d %.0f', grp.priority, grp.asked, grp.set, grp.paused,
    grp.level, grp.turn)
  if not grp.rate or (grp.is_shared and not full_at(grp)) then return line end
  return line .. string.format(' %.0f ', grp.free) .. (grp.is_shared and 'q' or '') .. grp.rate
    .. ' ' .. grp.spent
end

-- The group of a job with these constraints, which is touched by this; `priority` is for one that
-- is not known any more. Nil for a job of no group.
function group.touch(line, priority)
  local name = group.of(line)
  if not name then return nil end
  local grp = group.touched[name]
  if not grp then
    grp = group.read(name)
    group.touched[name] = grp
    if not grp.is_known then
      grp.priority = priority or DEFAULT
      grp.asked = tonumber(string.match(' ' .. line, ' n=(%d+)') or 0)
      grp.is_known = true
    end
  end
  return grp
end

function group.limit(grp) return grp.set > 0 and grp.set or math.max(grp.asked, 1) end

-- What all of a group's entries lie between.
function group.within(name) return '[' .. name .. ' ', '(' .. name .. '!' end

function group.running(name) return redis.call('ZLEXCOUNT', held, group.within(name)) end

function group.entry(name, at, id) return string.format('%s %017.0f %s', name, at, id) end

-- How markers of a level begin.
function group.letter(level) return string.sub(LETTERS, level, level) end

function group.marker(grp)
  return string.format('%s %017.0f ', group.letter(grp.level), grp.turn) .. grp.name
end

-- A job of a group that has a rate begins.
function group.spend(grp)
  local bucket = rate_limit.bucket(grp.rate, grp.spent)
  if not bucket then return end
  bucket.taken, bucket.last = bucket.taken + 1, now
  note(grp, rate_limit.stored(bucket))
end

-- Jobs of a group that has a rate were returned before they began: `unbegun`, as `rate_limit`
-- has it.
function group.put_back(grp, unbegun)
  local bucket = rate_limit.bucket(grp.rate, grp.spent)
  if bucket and rate_limit.put_back(bucket, unbegun) then
    note(grp, rate_limit.stored(bucket))
  end
end

-- What the latest of a group's jobs says of it, holds.
function group.join(grp, line, level)
  if level <= LEVELS then grp.priority = LEVELS - level end
  grp.asked = tonumber(string.match(' ' .. line, ' n=(%d+)')) or grp.asked
end

function group.put(grp, at, id)
  redis.call('ZADD', due[group.GROUPED], at, id)
  redis.call('ZADD', order, 0, group.entry(grp.name, at, id))
end

function group.drop(grp, at, id)
  grp.is_changed = true
  redis.call('ZREM', order, group.entry(grp.name, at, id))
end

function group.release(grp, id) redis.call('ZREM', held, grp.name .. ' ' .. id) end

-- When a group's next job is due, and its id. Entries of jobs that are not there are dropped; where
-- there are many of them, some: then a time, and no id.
function group.head(name)
  for _ = 1, STALE do
    local least, most = group.within(name)
    local entry = redis.call('ZRANGEBYLEX', order, least, most, 'LIMIT', 0, 1)[1]
    if not entry then return nil end
    local at, id = string.match(entry, ' (%d+) (%S+)$', #name + 1)
    at = tonumber(at)
    if at and tonumber(redis.call('ZSCORE', due[group.GROUPED], id)) == at then
      return at, id
    end
    redis.call('ZREM', order, entry)
  end
  return 0
end

-- How long one token of a group's rate takes to come.
local function wait_of(grp)
  local count, period = string.match(grp.rate or '', '^(%d+) (%d+) ')
  return math.ceil((tonumber(period) or 0) / math.max(tonumber(count) or 1, 1))
end

-- Puts a group's marker where it belongs, and remembers the group while there is anything to
-- remember, with those in `changed`. When its turn is, or nil. One whose turn has come keeps its
-- place among the others.
local function turn_of(grp, changed)
  local running = grp.running or group.running(grp.name)
  local may_begin = grp.paused == 0 and running < group.limit(grp)
  local at = (may_begin or running == 0) and group.head(grp.name)
  local level, turn = 0, 0
  -- It is later only where the clock was set back.
  if grp.free > now then grp.free = math.min(grp.free, now + wait_of(grp)) end
  if at and may_begin then
    level = grp.level == group.ALONE and not grp.is_changed and group.ALONE or LEVELS - grp.priority
    turn = math.max(at, now, grp.free)
    if grp.level > 0 and grp.turn <= now and turn == now then turn = grp.turn end
  end
  if grp.level > 0 then redis.call('ZREM', turns, group.marker(grp)) end
  grp.level, grp.turn = level, turn
  if level > 0 then redis.call('ZADD', turns, 0, group.marker(grp)) end
  if grp.rests then redis.call('ZREM', resting, grp.name) end
  local is_used = at or running > 0 or grp.set > 0 or grp.paused == 1
    or (grp.rate and not grp.is_shared)
  local rests_until = not is_used and full_at(grp)
  if rests_until then
    grp.turn = rests_until
    redis.call('ZADD', resting, rests_until, grp.name)
  end
  if is_used or rests_until then
    changed[#changed + 1] = grp.name
    changed[#changed + 1] = group.format(grp)
  else
    redis.call('HDEL', groups, grp.name)
  end
  return level > 0 and turn or nil
end

-- Does this for all groups that were touched; the earliest of their turns, or nil.
function group.turns()
  local earliest
  local changed = {}
  for _, grp in pairs(group.touched) do
    local turn = turn_of(grp, changed)
    if turn and (not earliest or turn < earliest) then earliest = turn end
  end
  if #changed > 0 then redis.call('HSET', groups, unpack(changed)) end
  group.touched = {}
  return earliest
end

-- A job has been taken out of `due:grouped` and is not to run: out of its group, too.
function group.leave(at, id)
  local grp = group.touch(redis.call('HGET', terms, id))
  if grp then group.drop(grp, at, id) end
  return grp
end

return group
