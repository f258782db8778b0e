-- fsck_jobs: check a part of a key that contains job ids, and repair inconsistencies.
-- @arg   part       text     the name of the key
-- @arg   level      integer  the index of the key, from 1; 0 if there is only one

-- Every job that has a body is looked at when `jobs` is; of the other keys, what has none. So each
-- is told once. What is found holds: nothing moves while a script runs.
local CHUNK, LEASE, DAY = 250, 60000000, fsck.DAY
local EARLIEST, LAST = 1000000000000000, 9999999999999999
local NAMED = {[11] = 'alone', [12] = 'unserved', [13] = 'grouped'}
local LIKELY = {'due', 'blocked', 'active', 'failed', 'cancelled', 'completed'}
local WHY_NO_BODY = '{"type":"bide.PayloadError","message":"Its body was lost on the server, so'
  .. ' it cannot run; enqueue it again."}'

local STATES = {'blocked', 'active', 'completed', 'failed', 'cancelled'}
local hashes = {jobs = jobs, run = run, results = results, notes = notes, terms = terms}
local zsets = {blocked = blocked, active = active, completed = completed, failed = failed,
  cancelled = cancelled, asked = asked, waiters = waiters, due = due[level], trash = trash[level]}
if not hashes[part] and not zsets[part] then return redis.error_reply('BADARG fsck_jobs part') end

local set = redis.call('HMGET', meta, 'large', 'own', 'lease_us', 'listened', 'clock',
  'rewound_until')
local latest = fsck.latest(set[5], set[6])
local lease_us = math.min(fsck.moment(set[3], 1, DAY) or LEASE, DAY)
-- The server reads what is stored along with its ids; notes are read line by line, too.
if part == 'notes' then limit = math.min(limit, 10) end

local has_moved, wakes = false, false
local grp -- the group of the job that is judged, or nil
local tell = fsck.tell

local function name(place) return place.label or place.state end

local function names(places)
  local words = {}
  for i, place in ipairs(places) do words[i] = name(place) end
  return table.concat(words, ' and ')
end

local function label_of(i) return 'due:' .. (i <= 10 and 10 - i or NAMED[i]) end

-- Every set in which one of these jobs is: per job, those that say its state, and the trash.
local function find(ids)
  local listed, aside = {}, {}
  for i = 1, #ids do listed[i], aside[i] = {}, {} end
  local function look(into, state, at_level, where, label)
    local scores = redis.call('ZMSCORE', where, unpack(ids))
    for i = 1, #ids do
      if scores[i] then
        local places = into[i]
        places[#places + 1] = {state = state, level = at_level, key = where, score = scores[i],
          label = label}
      end
    end
  end
  for i = 1, #due do look(listed, 'due', i, due[i], label_of(i)) end
  for i = 1, #trash do look(aside, 'trash', i, trash[i]) end
  for _, state in ipairs(STATES) do look(listed, state, nil, zsets[state]) end
  return listed, aside
end

local function level_of(rec, i) return grp and group.GROUPED or fsck_record.level(rec, i) end

-- Where a job goes that is put into a state.
local function place_in(state, rec, score)
  if state == 'due' then
    local at = level_of(rec)
    return {state = state, level = at, key = due[at], score = score or now, label = label_of(at)}
  end
  return {state = state, key = zsets[state], score = state == 'active' and now + lease_us or now}
end

local function remove(id, place)
  redis.call('ZREM', place.key, id)
  fsck_group.leave(grp, place, id)
  has_moved = true
end

local function move(id, from, to)
  if repair == 0 then return to end
  if from then remove(id, from) end
  redis.call('ZADD', to.key, to.score, id)
  fsck_group.enter(grp, to, id)
  has_moved = true
  if to.state == 'due' then
    wakes = true
  elseif to.state ~= 'active' and to.state ~= 'blocked' then
    notify_waiters.tell({id})
  end
  return to
end

local BECOMES = {due = 'becomes due now', blocked = 'waits for others again',
  active = 'is held under a new lease, and is due again when that ends'}
local function becomes(state) return BECOMES[state] or 'is put among the ' .. state end

-- Of several sets the one that the record tells of, else the one in which least can be lost.
local function choose(places, rec)
  for _, state in ipairs({rec and fsck_record.state(rec) or 'due', unpack(LIKELY)}) do
    local first
    for _, place in ipairs(places) do
      if place.state == state and (not first or place.level == level_of(rec)) then
        first = place
      end
    end
    if first then return first end
  end
end

local function check_score(id, here, rec)
  local least, most, fix = math.min(EARLIEST, now), LAST, now
  if here.state == 'active' then
    fix = now + lease_us
    most = now + 100 * 366 * DAY
  elseif here.state ~= 'due' then
    least = -LAST
    if not (rec and rec.ended) then most = latest + DAY end
  end
  if fsck.moment(here.score, least, most) then return end
  if tell('score', id, 'its score in ' .. name(here) .. ' is not a time: ' .. here.score,
    here.state == 'active' and 'its lease starts now' or 'becomes now') then
    redis.call('ZADD', here.key, fix, id)
    here.score = fix
    wakes = wakes or here.state == 'due'
  end
end

-- What one job shows the queue must be marked with; `at`: of the field in `set`.
local function check_mark(id, at, field, says, is_needed)
  if set[at] or not is_needed then return end
  set[at] = '1'
  if tell('mark', id, says .. ', and the queue is not marked so', 'is marked') then
    redis.call('HSET', meta, field, 1)
  end
end

-- A job that the sets list, or that has a body: what is wrong with it.
local function judge(id, listed, aside, line, asked_of)
  grp = asked_of and constraints.valid(asked_of, true) and group.touch(asked_of) or nil
  local rec, is_odd = fsck_record.read(line)
  local has_body = redis.call('HEXISTS', jobs, id) == 1
  if #listed == 0 and #aside > 0 then
    if #aside > 1 and tell('sets', id, 'is in the trash more than once', 'is in it once') then
      for i = 2, #aside do redis.call('ZREM', aside[i].key, id) end
    end
    return
  end
  if #aside > 0 and tell('sets', id, 'is in ' .. names(listed) .. ' and in the trash',
    'is no longer in the trash') then
    for _, place in ipairs(aside) do redis.call('ZREM', place.key, id) end
  end
  local here = listed[1]
  if not here then
    local state = rec and fsck_record.state(rec) or 'due'
    if state == 'due' and deps_edges.waits(id) then state = 'blocked' end
    here = place_in(state, rec)
    tell('unlisted', id, 'has a body, and no set lists it', becomes(state))
    move(id, nil, here)
  elseif #listed > 1 then
    here = choose(listed, rec)
    if tell('sets', id, 'is in ' .. names(listed), 'stays in ' .. name(here) .. ' alone') then
      for _, place in ipairs(listed) do
        if place ~= here then remove(id, place) end
      end
    end
  end

  if is_odd and tell('record', id, 'its run record cannot be read',
    rec and 'what can be read of it is kept' or 'is removed') then
    if rec then record_store.write(id, rec) else redis.call('HDEL', run, id) end
  end
  if not rec and here.state == 'active' then
    tell('record', id, 'is active without a run record', becomes('due'))
    here = move(id, here, place_in('due', nil))
  elseif rec and not fsck_record.allows(rec, here.state) then
    local state = fsck_record.state(rec)
    tell('outcome', id, 'is ' .. name(here) .. ', but its run record says '
      .. fsck_record.stamp(rec) .. ', which is ' .. state, becomes(state))
    here = move(id, here, place_in(state, rec))
  end
  local said = not rec and redis.call('HGET', notes, id) or '' -- `R`: it was only rescheduled
  if not rec and (here.state == 'completed' or here.state == 'failed'
    or string.find('\n' .. said, '\n[^R]')) then
    rec = run_record.unclaimed(10 - fsck_record.level(nil, here.level))
    if here.state == 'completed' then rec.head = run_record.settled(rec.head, 'C') end
    if here.state == 'failed' then rec.head = run_record.settled(rec.head, 'F') end
    if tell('record', id, 'is ' .. name(here) .. ' and its run record is lost',
      'has one again, that knows of no attempt') then
      record_store.write(id, rec)
    end
  end
  if here.state == 'due' and here.level ~= level_of(rec, here.level) then
    local to = place_in('due', rec, here.score)
    tell('level', id, 'is in ' .. name(here) .. ', but belongs in ' .. name(to), 'moves there')
    here = move(id, here, to)
  end
  if here.state == 'blocked' and not deps_edges.waits(id) then
    tell('edges', id, 'is blocked, and waits for nothing', becomes('due'))
    here = move(id, here, place_in('due', rec))
  end
  check_score(id, here, rec)
  if not fsck_group.is_known(grp, here, id)
    and tell('group', id, 'its group does not know that it is ' .. name(here),
      'knows it again') then
    fsck_group.enter(grp, here, id)
  end

  if not has_body then
    tell('body', id, 'is ' .. name(here) .. ' and its body is lost',
      here.state == 'due' and 'has failed, with that as its reason' or 'has an empty one')
    if repair == 1 then redis.call('HSET', jobs, id, '') end
    if here.state == 'due' then
      rec = rec or run_record.unclaimed(10 - fsck_record.level(nil, here.level))
      rec.head = run_record.settled(rec.head, 'F')
      here = move(id, here, place_in('failed', rec))
      if repair == 1 then
        record_store.write(id, rec)
        history.note(id, history.error(rec, WHY_NO_BODY))
      end
    end
  else
    check_mark(id, 1, 'large', 'its body is large',
      not set[1] and redis.call('HSTRLEN', jobs, id) > read_budget.LARGE)
  end
  check_mark(id, 2, 'own', 'is kept for a time of its own', rec and rec.ended)
  if here.state ~= 'completed' and redis.call('HEXISTS', results, id) == 1
    and tell('result', id, 'has a result, but is ' .. name(here), 'its result is removed') then
    retention.uncount({id})
    redis.call('HDEL', results, id)
  end
end

-- Someone waits for its end, or wants it.
local function check_aside(id, state, score)
  if part == 'asked' and state ~= 'active' then
    local is_unlisted = not state and redis.call('HEXISTS', jobs, id) == 1 -- which has been told
    if not is_unlisted
      and tell('asked', id, 'was asked to stop, and does not run', 'is forgotten') then
      redis.call('ZREM', asked, id)
    end
  elseif part == 'waiters' and state and state ~= 'due' and state ~= 'active'
    and state ~= 'blocked' then
    if tell('waiters', id, 'is waited for, and has ended', 'is told, and forgotten') then
      notify_waiters.tell({id})
    end
  elseif not fsck.moment(score, math.min(EARLIEST, now), now + 100 * 366 * DAY) then
    if tell('score', id, 'its score in ' .. part .. ' is not a time: ' .. score,
      part == 'asked' and 'becomes now' or 'is forgotten') then
      if part == 'asked' then
        redis.call('ZADD', asked, now, id)
      else
        redis.call('ZREM', waiters, id)
      end
    end
  end
end

-- What stands in a key beside `jobs`, and has no body.
local function check_bodiless(id, listed, aside, line, asked_of)
  if #listed > 0 then
    -- Else its set tells of it.
    if not hashes[part] then judge(id, listed, aside, line, asked_of) end
  elseif #aside == 0 or part == 'trash' then
    if tell('orphan', id, 'is in ' .. part .. ', and there is no such job', 'is removed') then
      redis.call('ZREM', trash[math.max(level, 1)], id)
      retention.forget({id}, true)
    end
  end
end

local function check_notes(id, text)
  local readable = fsck_record.notes(text)
  if readable and tell('notes', id, 'some of its notes cannot be read', 'they are removed') then
    if readable == '' then
      redis.call('HDEL', notes, id)
    else
      redis.call('HSET', notes, id, history.add(false, readable))
    end
  end
end

local function check_terms(id, line, listed, run_line)
  if not constraints.valid(line, true) then
    if tell('terms', id, 'its constraints cannot be read', 'they are removed') then
      redis.call('HDEL', terms, id)
    end
    return
  end
  local here = listed[1]
  local by = here and here.state == 'due' and constraints.begins_by(line, tonumber(here.score))
  if by and not redis.call('ZSCORE', expiring, id)
    and run_record.is_unbegun(run_record.parse(run_line)) -- else a claim looks once more, in vain
    and tell('terms', id, 'is to begin by a time, and is not in expiring', 'is put there') then
    redis.call('ZADD', expiring, by, id)
    wakes = true
  end
end

local ids, values, seen = {}, {}, {}
local function collect(id, value)
  if seen[id] then return end
  seen[id] = true
  ids[#ids + 1], values[#values + 1] = id, value
end
if hashes[part] then
  fsck.hash(hashes[part], collect,
    part == 'results' or part == 'notes' or part == 'jobs' and set[1])
else
  fsck.zset(zsets[part], collect)
end
for first = 1, #ids, CHUNK do
  local some = {unpack(ids, first, math.min(first + CHUNK - 1, #ids))}
  local listed, aside = find(some)
  local lines = redis.call('HMGET', run, unpack(some))
  local asked_of = redis.call('HMGET', terms, unpack(some))
  for i, id in ipairs(some) do
    local value = values[first + i - 1]
    if part == 'asked' or part == 'waiters' then
      check_aside(id, listed[i][1] and listed[i][1].state, value)
    elseif part == 'jobs' then
      judge(id, listed[i], aside[i], lines[i], asked_of[i])
    elseif redis.call('HEXISTS', jobs, id) == 0 then
      check_bodiless(id, listed[i], aside[i], lines[i], asked_of[i])
    elseif part == 'notes' then
      check_notes(id, value)
    elseif part == 'terms' then
      check_terms(id, value, listed[i], lines[i])
    end
  end
end
if repair == 1 and group.turns() then wakes = true end
if wakes then wakeup.push('-') end
-- There is no event for each: a listener sees a gap, and reads the jobs again.
if has_moved and set[4] then redis.pcall('HINCRBY', meta, 'told', 1) end
return fsck.reply()
