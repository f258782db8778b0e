-- Deduplication of calls: an existing job holds their key (`dedup_keys`). The start and the end of
-- a job do not change its key. Instead, a script that reads the key checks where the job is. So no
-- key outlives its job, however the job ended. A deduplicated call adds no job, and is recorded in
-- `folded`, so that its repeat finds it: `<when> <word> <due> <holder>`.
local dedup = {}

local batches, created, remembered = {}, 0, 0 -- by this call
local touched = 0 -- bytes of these batches as they were: they are read and written again

local LIMIT = 1000000 -- bytes of a batch, unless one item has more
local TOUCHED = 2 * LIMIT -- what one call adds to
local REPEATS = 15000000 -- as `retention` spares what has finished
local LOOKS = 100 -- others that one call looks at, at most
local LATER = 100 -- runs of a throttle that are remembered beside those of one period

local function write_entry(field, id, till, since, more)
  local line = string.format('%s %s %.0f', id, type(till) == 'number'
    and string.format('%.0f', till) or till, since)
  for _, number in ipairs(more or {}) do line = line .. string.format(' %.0f', number) end
  redis.call('HSET', unique, field, line)
end

-- The job that holds an entry. Its state: it 'waits' for its first run or 'again' for another (in
-- which due set, due when, and its record, if any), it 'runs', or is 'cancelled', or has 'ended' in
-- whatever way. A namesake of other constraints is another job.
local function holder_of(id, field)
  local job = {id = id, state = 'ended'}
  local asked = redis.call('HGET', terms, id)
  local rule = asked and dedup_keys.rule(asked)
  if not rule or rule.field ~= field then return job end
  job.level, job.at = locate.due(id)
  if job.level then
    job.line = redis.call('HGET', run, id)
    job.state = run_record.is_unbegun(run_record.parse(job.line)) and 'waits' or 'again'
  elseif redis.call('ZSCORE', active, id) then
    job.state = 'runs'
  elseif redis.call('ZSCORE', cancelled, id) then
    job.state = 'cancelled'
  end
  return job
end

local function holds(entry, state)
  if entry.till == 's' then return state == 'waits' end
  if entry.till == 'f' then return state == 'waits' or state == 'again' or state == 'runs' end
  return now < tonumber(entry.till) and state ~= 'cancelled'
end

-- Gives a waiting job another due time, and other constraints, where it had others `before`.
local function move(job, level, at, line, before)
  line = line or redis.call('HGET', terms, job.id)
  if job.level ~= level or at ~= job.at or before then
    insert.move(job.id, job.level, job.at, level, at, before or line, line)
  end
  insert.begins(constraints.expires(job.id, line, at))
end

-- At which level a waiting job stands with a call's constraints: what has a record, at that which
-- it says, unless its group has one. If the call says when the job is due, its wait starts again.
local function level_of(call, job, at)
  local level = record_store.moved(job.id, job.level, at)
  if not job.line or constraints.value(call.line, 'g') then return call.level end
  if level ~= group.GROUPED then return level end
  local rec = run_record.parse(job.line)
  return rec and record_store.level(rec) or call.level
end

-- Marks the queue if it now has a large body.
local function note_size(bytes)
  if bytes > read_budget.LARGE then redis.call('HSETNX', meta, 'large', 1) end
end

local function replace(call, job, at)
  local before = redis.call('HGET', terms, job.id)
  redis.call('HSET', jobs, job.id, call.body)
  redis.call('HSET', terms, job.id, call.line)
  note_size(#call.body)
  move(job, level_of(call, job, at), at, call.line, before)
end

-- When a call is due that a policy would have due at `at`: not before it was asked for.
local function not_before(call, at)
  return call.at > now and math.max(call.at, at) or at
end

-- When no call has come for a while, or the longest wait of the `first` is over.
local function quiet_at(rule, first)
  local quiet, most = rule.n[1], rule.n[2]
  return most > 0 and math.min(now + quiet, first + most) or now + quiet
end

local kinds = {}

function kinds.u(call, rule, job, entry)
  if not entry or entry.id == call.id or not holds(entry, job.state) then
    local till = tonumber(rule.till)
    write_entry(rule.field, call.id, till and now + till or rule.till, now)
    return 'created', call.at
  elseif rule.way == 'x' then
    return 'rejected', job.at or 0
  elseif rule.way == 'r' and job.level then
    local at = call.at > now and call.at or math.min(job.at, now)
    replace(call, job, at)
    return 'replaced', at
  end
  return 'duplicate', job.at or 0
end

function kinds.d(call, rule, job, entry)
  local waits = job.state == 'waits'
  local first = waits and entry.since or now
  local at = not_before(call, quiet_at(rule, first))
  if not waits then
    write_entry(rule.field, call.id, 's', first)
    return 'created', at
  end
  replace(call, job, at)
  return 'debounced', at
end

-- Of the runs of a throttle, by when they are due: the first time from `at` on at which no period
-- would have more than `count` of them. Of a list that is full, the earliest may have been dropped.
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

function kinds.t(call, rule, job, entry)
  local count, period = rule.n[1], rule.n[2]
  local slots = entry and entry.more or {}
  local back = entry and entry.since - now or 0 -- by which the clock was set back, at least
  for i = 1, back > 0 and #slots or 0 do slots[i] = slots[i] - back end
  local id, trailing = job.id or '-', table.remove(slots, 1) or 0
  while slots[1] and slots[1] + period <= now do table.remove(slots, 1) end
  if job.state == 'cancelled' then take_out(slots, trailing) end
  local word, at = 'created', free_from(slots, count, period, call.at)
  -- One that is to run later, and is not too near to others, leaves the trailing run as it is.
  local is_trailing = job.state == 'waits'
  if is_trailing and (at > call.at or call.at <= now) then
    take_out(slots, trailing)
    word, at = 'throttled', free_from(slots, count, period, call.at)
    if call.at <= now then at = math.min(at, job.at) end
    replace(call, job, at)
    trailing = at
  elseif at > call.at then
    id, trailing = call.id, at
  elseif not is_trailing then
    id, trailing = '-', 0
  end
  put_in(slots, at, count)
  local till = slots[#slots] + period
  table.insert(slots, 1, trailing)
  write_entry(rule.field, id, till, now, slots)
  return word, at
end

function kinds.g(call, rule, job, entry)
  local size, item = rule.n[3], '\6' .. #call.body .. '\n' .. call.body -- one of several
  local by = rule.n[4] and now + rule.n[4] -- when an item that ends the list has it due
  local held = job.state == 'waits' and (batches[job.id]
    or {bytes = redis.call('HSTRLEN', jobs, job.id)})
  local more = held and not batches[job.id] and held.bytes or 0
  local first, count = now, 1
  if held and held.bytes + #item <= LIMIT and touched + more <= TOUCHED then
    touched = touched + more
    first, count = entry.since, (entry.more[1] or 0) + 1
    if entry.more[2] then by = math.min(by or entry.more[2], entry.more[2]) end
  elseif held then -- there is no room: it goes as it is
    move(job, job.level, math.min(job.at, now))
    held = nil
  end
  local at = math.min(quiet_at(rule, first), by or math.huge)
  local is_full = count >= size
  if is_full then at = math.min(at, held and job.at or at, now) end
  at = not_before(call, at)
  write_entry(rule.field, held and job.id or call.id, 's', first, {count, by})
  -- Removed behind a write: a full server lets a script continue that began with a removal.
  if is_full then redis.call('HDEL', unique, rule.field) end
  if not held then
    call.body = item
    return 'created', at
  end
  move(job, record_store.moved(job.id, job.level, at), at)
  held[#held + 1], held.bytes = item, held.bytes + #item
  batches[job.id] = held
  return 'batched', at
end

-- What comes of one call: a word, when the job is due or 0, and the job that holds the key.
--
--   created    the call has its own job, whose body is stored; its other records are not yet
--   duplicate, rejected    a job has the id or holds the key; nothing is changed
--   replaced, debounced, throttled    the holder has the call's body and constraints
--   batched    the holder has the call's item
function dedup.call(rule, call)
  local noted = redis.call('HGET', folded, call.id)
  if noted then
    local came, word, at, holder = string.match(noted, '^(%d+) (%l+) (%d+) (%S+)$')
    local is_repeat = came and came + REPEATS >= now
    if is_repeat then return word, tonumber(at), holder end
  end
  if redis.call('HEXISTS', jobs, call.id) == 1 then
    if not new_jobs.untrash({call.id})[call.id] then return 'duplicate', 0, call.id end
    redis.call('HDEL', jobs, call.id) -- what `purge` has set aside is as good as deleted
  end
  local entry = dedup_keys.read(redis.call('HGET', unique, rule.field))
  local job = entry and entry.id ~= '-' and holder_of(entry.id, rule.field) or {}
  local word, at = kinds[rule.kind](call, rule, job, entry)
  if word == 'created' then
    redis.call('HSET', jobs, call.id, call.body)
    note_size(#call.body)
    created = created + 1
    return word, at, call.id
  end
  if word ~= 'duplicate' and word ~= 'rejected' then
    redis.call('HSET', folded, call.id, string.format('%.0f %s %.0f %s', now, word, at, job.id))
    remembered = remembered + 1
  end
  return word, at, job.id
end

-- Writes batches, and looks at twice as many others as there are more now, so that those
-- that hold nothing any more are never more than those that do.
function dedup.finish()
  for id, held in pairs(batches) do
    local body = redis.call('HGET', jobs, id)
    redis.call('HSET', jobs, id, body .. table.concat(held))
    note_size(held.bytes)
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
  look(folded, remembered, function(noted)
    return (tonumber(string.match(noted, '^%d+')) or 0) + REPEATS < now
  end)
  look(unique, created, function(text, field)
    local entry = dedup_keys.read(text)
    if not entry then return true end
    local till = tonumber(entry.till)
    if till and (now < till or #entry.more == 0) then return now >= till end
    -- One that runs may be returned before it has begun, and holds its key again.
    local state = holder_of(entry.id, field).state
    return state ~= 'waits' and state ~= 'runs' and not holds(entry, state)
  end)
end

return dedup
