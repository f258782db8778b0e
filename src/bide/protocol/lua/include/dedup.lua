-- Calls that fold into a job that is there already, because it holds their key (`dedup_keys`).
--
-- Whether a job still holds its key is not noted where it begins or ends: it is seen, by where the
-- job is, when somebody asks for the key. So no lock outlives its job, however that ended. A call
-- that was folded leaves no job of its own, and is remembered in `folded`, so that its repeat
-- finds itself: `<when> <word> <due> <holder>`.
local dedup = {}

local LIMIT = 1000000 -- bytes of a job that gathers, unless one item has more
local REPEATS = 15000000 -- as `retention` spares what has finished
local LOOKS = 100 -- others that one call looks at, at most
local LEVELS, ALONE, STRIKES = 10, 11, 2
local LATER = 100 -- runs of a throttle that are remembered beside those of one period

-- A body as one of several: the items of a job that gathers.
local function framed(body) return '\6' .. #body .. '\n' .. body end

local function write_entry(inserter, field, id, till, since, more)
  local line = string.format('%s %s %.0f', id, type(till) == 'number'
    and string.format('%.0f', till) or till, since)
  for _, number in ipairs(more or {}) do line = line .. string.format(' %.0f', number) end
  redis.call('HSET', inserter.unique, field, line)
end

-- Where a job is: 'waits' for its first run or 'again' for another, in which due set, due when and
-- whether it has a record; 'runs', 'cancelled', or 'ended' in whatever way. A namesake of other
-- terms is another job.
local function where(inserter, id, field)
  local asked = redis.call('HGET', inserter.terms, id)
  local rule = asked and inserter.dedup_keys.rule(asked)
  if not rule or rule.field ~= field then return 'ended' end
  local level, at = inserter.locate.due(inserter.due, id)
  if level then
    local line = redis.call('HGET', inserter.run, id)
    local is_first = inserter.expire.is_unbegun(line and inserter.run_record.parse(line))
    return is_first and 'waits' or 'again', level, at, line
  end
  if redis.call('ZSCORE', inserter.active, id) then return 'runs' end
  return redis.call('ZSCORE', inserter.cancelled, id) and 'cancelled' or 'ended'
end

local function holds(entry, state, now)
  if entry.till == 's' then return state == 'waits' end
  if entry.till == 'f' then return state == 'waits' or state == 'again' or state == 'runs' end
  return now < tonumber(entry.till) and state ~= 'cancelled'
end

-- Gives a waiting job other terms and another due time.
local function move(inserter, id, level, was, to_level, at, line, before)
  line = line or redis.call('HGET', inserter.terms, id)
  if level ~= to_level or at ~= was or before then
    inserter.move(id, level, was, to_level, at, before or line, line)
  end
  local by = inserter.constraints.begins_by(line, at)
  if by then
    redis.call('ZADD', inserter.expiring, by, id)
  else
    redis.call('ZREM', inserter.expiring, id)
  end
  inserter.begins(by)
end

-- At which level a waiting job stands with a call's terms: what has a record, at that which it
-- says, unless its group has one. If the call says when the job is due, its wait starts again.
local function level_of(inserter, call, id, level, line, at)
  if level > LEVELS then level = inserter.run_record.moved(inserter.run, id, level, at) end
  if not line or inserter.constraints.value(call.line, 'g') then return call.level end
  if level ~= inserter.GROUPED then return level end
  local rec = inserter.run_record.parse(line)
  if not rec then return call.level end
  return rec.strikes >= STRIKES and ALONE or LEVELS - rec.priority
end

-- Marks the queue if it now has a large body.
local function note_size(inserter, bytes)
  if bytes > inserter.read_budget.LARGE then redis.call('HSETNX', inserter.meta, 'large', 1) end
end

local function replace(inserter, call, id, level, was, line, at)
  local before = redis.call('HGET', inserter.terms, id)
  redis.call('HSET', inserter.jobs, id, call.body)
  redis.call('HSET', inserter.terms, id, call.line)
  note_size(inserter, #call.body)
  local to_level = level_of(inserter, call, id, level, line, at)
  move(inserter, id, level, was, to_level, at, call.line, before)
end

-- When a call is due that a policy would have due at `at`: not before it was asked for.
local function not_before(call, at)
  return call.at > call.now and math.max(call.at, at) or at
end

local kinds = {}

function kinds.u(inserter, call, rule, entry)
  local state, level, was, line
  if entry and entry.id ~= call.id then
    state, level, was, line = where(inserter, entry.id, rule.field)
  end
  if not state or not holds(entry, state, call.now) then
    local till = tonumber(rule.till)
    write_entry(inserter, rule.field, call.id, till and call.now + till or rule.till, call.now)
    return 'created', call.at
  elseif rule.way == 'x' then
    return 'rejected', was or 0, entry.id
  elseif rule.way == 'r' and level then
    local at = call.at > call.now and call.at or math.min(was, call.now)
    replace(inserter, call, entry.id, level, was, line, at)
    return 'replaced', at, entry.id
  end
  return 'duplicate', was or 0, entry.id
end

function kinds.d(inserter, call, rule, entry)
  local quiet, most = rule.n[1], rule.n[2]
  local state, level, was, line
  if entry then state, level, was, line = where(inserter, entry.id, rule.field) end
  local first = state == 'waits' and entry.since or call.now
  local at = call.now + quiet
  if most > 0 then at = math.min(at, first + most) end
  at = not_before(call, at)
  if state ~= 'waits' then
    write_entry(inserter, rule.field, call.id, 's', first)
    return 'created', at
  end
  replace(inserter, call, entry.id, level, was, line, at)
  return 'debounced', at, entry.id
end

-- Runs of a throttle, by when they are due, in order. The first time from `at` on at which no
-- period would have more than `count` of them. Of a list that is full, the earliest may have been
-- dropped.
local function free_from(slots, count, period, at)
  if #slots >= count + LATER then at = math.max(at, slots[count]) end
  for i = 1, #slots - count + 1 do
    local first, last = slots[i], slots[i + count - 1]
    local is_full = last - first < period and at > last - period and at < first + period
    if is_full then at = first + period end
  end
  return at
end

local function put_in(slots, at, count)
  local i = #slots + 1
  while i > 1 and slots[i - 1] > at do i = i - 1 end
  table.insert(slots, i, at)
  while #slots > count + LATER do table.remove(slots, 1) end
end

local function take_out(slots, at)
  for i = #slots, 1, -1 do
    if slots[i] == at then return table.remove(slots, i) end
  end
end

function kinds.t(inserter, call, rule, entry)
  local count, period = rule.n[1], rule.n[2]
  local slots = entry and entry.more or {}
  local back = entry and entry.since - call.now or 0 -- by which the clock was set back, at least
  for i = 1, back > 0 and #slots or 0 do slots[i] = slots[i] - back end
  local id, trailing = entry and entry.id or '-', table.remove(slots, 1) or 0
  while slots[1] and slots[1] + period <= call.now do table.remove(slots, 1) end
  local state, level, was, line
  if id ~= '-' then state, level, was, line = where(inserter, id, rule.field) end
  if state == 'cancelled' then take_out(slots, trailing) end
  local word, at = 'created', free_from(slots, count, period, call.at)
  -- One that is to run later, and is not too near to others, leaves the trailing run as it is.
  local is_trailing = state == 'waits'
  if is_trailing and (at > call.at or call.at <= call.now) then
    take_out(slots, trailing)
    word, at = 'throttled', free_from(slots, count, period, call.at)
    if call.at <= call.now then at = math.min(at, was) end
    replace(inserter, call, id, level, was, line, at)
    trailing = at
  elseif at > call.at then
    id, trailing = call.id, at
  elseif not is_trailing then
    id, trailing = '-', 0
  end
  put_in(slots, at, count)
  local till = slots[#slots] + period
  table.insert(slots, 1, trailing)
  write_entry(inserter, rule.field, id, till, call.now, slots)
  return word, at, id
end

function kinds.g(inserter, call, rule, entry)
  local quiet, most, size = rule.n[1], rule.n[2], rule.n[3]
  local state, level, was, line
  if entry then state, level, was, line = where(inserter, entry.id, rule.field) end
  local item = framed(call.body)
  local held = state == 'waits' and (inserter.held[entry.id]
    or {bytes = redis.call('HSTRLEN', inserter.jobs, entry.id)})
  local first, count = call.now, 1
  if held and held.bytes + #item <= LIMIT then
    first, count = entry.since, (entry.more[1] or 0) + 1
  elseif held then -- there is no room: it goes as it is
    move(inserter, entry.id, level, was, level, math.min(was, call.now))
    held, was = nil, nil
  end
  local at = call.now + quiet
  if most > 0 then at = math.min(at, first + most) end
  if count >= size then at = math.min(at, was or at, call.now) end
  at = not_before(call, at)
  if not held then
    call.body = item
    if count >= size then
      redis.call('HDEL', inserter.unique, rule.field)
    else
      write_entry(inserter, rule.field, call.id, 's', first, {count})
    end
    return 'created', at
  end
  if count < size then write_entry(inserter, rule.field, entry.id, 's', first, {count}) end
  local to = level
  if level > LEVELS then to = inserter.run_record.moved(inserter.run, entry.id, level, at) end
  move(inserter, entry.id, level, was, to, at)
  if count >= size then redis.call('HDEL', inserter.unique, rule.field) end
  held[#held + 1], held.bytes = item, held.bytes + #item
  inserter.held[entry.id] = held
  return 'batched', at, entry.id
end

-- What comes of one call: a word, when the job is due or 0, and the job that holds the key.
--
--   created    the call has its own job, whose body is stored; its other records are not yet
--   duplicate, rejected    a job has the id or holds the key; nothing is changed
--   replaced, debounced, throttled    the holder has the call's body and constraints
--   batched    the holder has the call's item
function dedup.call(inserter, rule, call)
  local noted = redis.call('HGET', inserter.folded, call.id)
  if noted then
    local came, word, at, holder = string.match(noted, '^(%d+) (%l+) (%d+) (%S+)$')
    local is_repeat = came and came + REPEATS >= call.now
    if is_repeat then return word, tonumber(at), holder end
  end
  if redis.call('HEXISTS', inserter.jobs, call.id) == 1 then
    if not inserter.is_trashed(call.id) then return 'duplicate', 0, call.id end
    redis.call('HDEL', inserter.jobs, call.id) -- what `purge` has set aside is as good as deleted
  end
  local entry = inserter.dedup_keys.read(redis.call('HGET', inserter.unique, rule.field))
  local word, at, holder = kinds[rule.kind](inserter, call, rule, entry)
  if word == 'created' then
    redis.call('HSET', inserter.jobs, call.id, call.body)
    note_size(inserter, #call.body)
    inserter.news = inserter.news + 1
    return word, at, call.id
  end
  if word ~= 'duplicate' and word ~= 'rejected' then
    redis.call('HSET', inserter.folded, call.id,
      string.format('%.0f %s %.0f %s', call.now, word, at, holder))
    inserter.notes = inserter.notes + 1
  end
  return word, at, holder
end

-- Writes what was gathered, and looks at twice as many others as there are more now, so that those
-- that hold nothing any more are never more than those that do.
function dedup.finish(inserter, now)
  for id, held in pairs(inserter.held) do
    local body = redis.call('HGET', inserter.jobs, id)
    redis.call('HSET', inserter.jobs, id, body .. table.concat(held))
    note_size(inserter, held.bytes)
  end
  local function look(key, count, is_over)
    if count == 0 then return end
    local found = redis.call('HRANDFIELD', key, math.min(2 * count, LOOKS), 'WITHVALUES')
    local over = {}
    for i = 1, #found, 2 do
      if is_over(found[i + 1], found[i]) then over[#over + 1] = found[i] end
    end
    if #over > 0 then redis.call('HDEL', key, unpack(over)) end
  end
  look(inserter.folded, inserter.notes, function(noted)
    return (tonumber(string.match(noted, '^%d+')) or 0) + REPEATS < now
  end)
  look(inserter.unique, inserter.news, function(text, field)
    local entry = inserter.dedup_keys.read(text)
    if not entry then return true end
    local till = tonumber(entry.till)
    if till and (now < till or #entry.more == 0) then return now >= till end
    -- One that runs may be given back before it has begun, and holds its key again.
    local state = where(inserter, entry.id, field)
    return state ~= 'waits' and state ~= 'runs' and not holds(entry, state, now)
  end)
end

return dedup
