-- settle: say how claimed jobs ended; refused where the token is no longer the job's.
-- @key   meta       counts, reads the retention and the limits, holds the queue
-- @key   due        adds what is to run again
-- @key   jobs       trims
-- @key   run        remembers token and outcome
-- @key   results    adds results that are not None, trims, drops what is over the budget
-- @key   notes      adds errors, trims
-- @key   terms      reads whose groups they are, and of what waited for these, trims
-- @key   expiring   adds what is freed
-- @key   blocked    removes what is freed, or cancelled
-- @key   edges      tells who waits for jobs that have ended
-- @key   unique     frees the keys of what is trimmed
-- @key   minutes    counts how long attempts ran
-- @key   order      adds what is to run again
-- @key   held       removes
-- @key   groups     reads and notes groups
-- @key   turns      moves groups' markers
-- @key   active     removes
-- @key   completed  adds, trims
-- @key   failed     adds, trims
-- @key   cancelled  adds, trims
-- @key   asked      forgets; a job whose end was asked for is not run again
-- @key   waiters    tells and forgets those who wait for a job's end
-- @key   wake       hints when a job is to run again before any promise, or one more may begin
-- @key   keep       reads the earliest promise
-- @key   events     tells listeners
-- @rest  id token outcome when data
-- @reply ok now, then per job: ok | lost | gone | later | full
-- @include clock record retain ended minute
-- @later   event when hint noting gate group term depend hold budget

-- later: not applied, because the notes of the jobs before it were long; send it again
-- full: applied; one or more results were dropped to stay within the budget
-- outcome: complete (when: how long to keep it, or nothing; data: result)
--        | retry (when; data: error) | fail (when: how long to keep it, or nothing; data: error)
--        | snooze (when; data: why it was not run: no worker serves it, or nothing; uses no
--          attempt)
--        | hold (when; as snooze, and no job of the queue is claimed before then)
--        | release (given back; when: anything if it had begun; uses no attempt)
--        | cancel (it was asked to end, and did)
--        | crash (its process died under it, and under no other job; when: how long to keep it if
--          it has failed by that, or nothing; data: error; uses no attempt)
local STAMP = {complete = 'C', retry = 'R', fail = 'F', snooze = 'S', hold = 'H', release = 'L',
  cancel = 'X', crash = 'K'}
local AGAIN = {retry = true, snooze = true, hold = true, release = true, crash = true}
local KIND = {complete = 'completed', retry = 'retried', fail = 'failed', snooze = 'rescheduled',
  release = 'rescheduled', cancel = 'cancelled', crash = 'reclaimed'}
local RAN = {complete = true, retry = true, fail = true, cancel = true} -- a token is when it began
local CRASHES, TELL = 3, 100
-- An error is added to the job's notes, which may be 90 KB long and are read and written again. So
-- a call reads this many bytes of them, and leaves further errors to the next call.
local NOTED_BYTES = 1000000

local ids, n = {}, 0
for i = rest, #ARGV, 5 do
  local outcome, at = ARGV[i + 2], ARGV[i + 3]
  if not STAMP[outcome] or #ARGV[i + 1] ~= 16
    or ((at ~= '' or outcome == 'retry' or outcome == 'snooze' or outcome == 'hold')
      and not when.valid(at)) then
    return redis.error_reply('BADARG settle rest')
  end
  n = n + 1
  ids[n] = ARGV[i]
end
if n == 0 then return redis.error_reply('BADARG settle rest') end

local now = clock.now(meta)
local now_score = string.format('%.0f', now) -- once, as `when.us` says
local lines = redis.call('HMGET', run, unpack(ids))
local leases = redis.call('ZMSCORE', active, unpack(ids))
local asks = redis.call('EXISTS', asked) == 1 and redis.call('ZMSCORE', asked, unpack(ids))
local limits = retain.limits(meta)
local book = limits.listened and event.open(limits.listened, now)
local asked_of = limits.groups and redis.call('HMGET', terms, unpack(ids))
local sets = {meta = meta, due = due, jobs = jobs, run = run, active = active,
  completed = completed, failed = failed, cancelled = cancelled, terms = terms,
  expiring = expiring, blocked = blocked, edges = edges,
  order = order, held = held, groups = groups, turns = turns}
local touched, puts, released = {}, {}, {}
local reply = {'ok', now}
local gone_active, records, results_add, notes_add = {}, {}, {}, {}
local large = {bytes = 0}
local completed_add, failed_add, cancelled_add, due_add = {}, {}, {}, {}
local settled, finished, counted = {}, {}, {}
local earliest, owns
local held_until, unbegun = 0, {}
local room = NOTED_BYTES
local counts = {complete = 0, retry = 0, fail = 0, snooze = 0, release = 0, cancel = 0,
  crash = 0}

local function again(f, id, at, of)
  if of then
    puts[#puts + 1] = {of, at, id}
    return
  end
  local set = due[f.strikes >= 2 and 11 or 10 - f.priority]
  local add = due_add[set]
  if not add then
    add = {}
    due_add[set] = add
  end
  add[#add + 1] = at
  add[#add + 1] = id
  if not earliest or at < earliest then earliest = at end
end

-- It was claimed and has not begun: what it took of the rates of its queue and of its group.
local function give_back(f, of)
  unbegun[#unbegun + 1] = f.started
  if of and of.rate then
    of.unbegun = of.unbegun or {}
    of.unbegun[#of.unbegun + 1] = f.started
  end
end

local function apply(k, stamp, outcome, at, data)
  local id, line, verb = ids[k], lines[k], outcome
  local of = asked_of and asked_of[k] and group.touch(sets, touched, asked_of[k])
  if of then released[#released + 1] = {of, id} end
  gone_active[#gone_active + 1] = id
  counts[outcome] = counts[outcome] + 1
  line = record.settled(line, stamp)
  local f
  local due_us = 0
  if data ~= '' and outcome ~= 'complete' then
    f = record.parse(line) or record.unknown(string.sub(line, 1, 34), now)
    if outcome ~= 'snooze' or not f.missing then -- of looks in a row, the first says it
      local before = redis.call('HGET', notes, id)
      room = room - #(before or '') - #data
      notes_add[#notes_add + 1] = id
      notes_add[#notes_add + 1] = noting.add(before, noting.error(f, now, data))
    end
  end
  if outcome == 'crash' then
    f = f or record.parse(line) or record.unknown(string.sub(line, 1, 34), now)
    f.crashes, f.attempt, f.alone, f.missing = f.crashes + 1, f.attempt - 1, 0, nil
    line = record.format(f.head, f)
    if f.crashes >= CRASHES then
      outcome = 'fail'
      counts.fail = counts.fail + 1
    end
  end
  if outcome == 'crash' then
    due_us = math.min(f.due, now)
    again(f, id, due_us, of)
  elseif AGAIN[outcome] then
    f = f or record.parse(line) or record.unknown(string.sub(line, 1, 34), now)
    f.alone = 0
    if outcome ~= 'retry' then f.attempt = f.attempt - 1 end
    if outcome == 'release' then
      if at == '' then give_back(f, of) end
      -- What has begun once does not expire, and takes no more items: see `expire.is_unbegun`.
      if at ~= '' then f.first, f.missing = f.first or f.due, nil end
      due_us = math.min(f.due, now)
    else
      f.first = f.first or f.due
      if outcome == 'snooze' and data ~= '' then -- it has not run: what crashed with it, still did
        f.missing = f.missing or f.started
        give_back(f, of)
      else
        f.strikes, f.crashes, f.missing = 0, 0, nil
      end
      due_us = when.us(at, now)
    end
    again(f, id, due_us, of)
    line = record.format(f.head, f)
  else
    finished[#finished + 1] = id
    local add, age = cancelled_add, limits[6]
    if outcome == 'complete' then
      add, age = completed_add, limits[2]
      if data ~= '' then
        results_add[#results_add + 1] = id
        results_add[#results_add + 1] = data
        if #data >= retain.LARGE then
          large.bytes, large.at = large.bytes + #data, k + 2
        end
      end
    elseif outcome == 'fail' then
      add, age = failed_add, limits[4]
    end
    local score = now_score
    if at ~= '' and outcome ~= 'cancel' then
      score = retain.score(now, tonumber(string.sub(at, 2)), age)
      f = f or record.parse(line) or record.unknown(string.sub(line, 1, 34), now)
      f.ended = now
      owns = true
      line = record.format(f.head, f)
    end
    add[#add + 1] = score
    add[#add + 1] = id
  end
  records[#records + 1] = id
  records[#records + 1] = line
  if book then
    local was = record.parse(lines[k]) or record.unknown('', now)
    event.add(book, KIND[outcome], verb, id, was.worker, was.attempt, due_us,
      outcome == 'complete' and '' or data)
  end
end

for k = 1, n do
  local i = rest + (k - 1) * 5
  local id, token, outcome, line = ids[k], ARGV[i + 1], ARGV[i + 2], lines[k]
  local word = 'lost'
  -- What nearly all are stands first: a token that is held was never settled, because tokens grow.
  if line and leases[k] and not settled[id] and record.stamp(line) == token .. '-' then
    if room <= 0 and outcome ~= 'complete' and ARGV[i + 4] ~= '' then
      word = 'later'
    else
      settled[id] = token .. outcome
      local effect = asks and asks[k] and AGAIN[outcome] and 'cancel' or outcome
      if outcome == 'hold' then held_until = math.max(held_until, (when.us(ARGV[i + 3], now))) end
      if effect == 'hold' then effect = 'snooze' end
      apply(k, STAMP[outcome], effect, ARGV[i + 3], ARGV[i + 4])
      if RAN[outcome] then minute.count(counted, math.max(0, now - tonumber(token))) end
      word = 'ok'
    end
  elseif not line then
    word = 'gone'
  elseif settled[id] == token .. outcome or record.remembers(line, token, STAMP[outcome]) then
    word = 'ok'
  end
  reply[k + 2] = word
end
if #gone_active == 0 then return reply end

-- Removes first: a full server lets taken work finish.
redis.call('ZREM', active, unpack(gone_active))
if asks then redis.call('ZREM', asked, unpack(gone_active)) end
if #completed_add > 0 then redis.call('ZADD', completed, unpack(completed_add)) end
if #failed_add > 0 then redis.call('ZADD', failed, unpack(failed_add)) end
if #cancelled_add > 0 then redis.call('ZADD', cancelled, unpack(cancelled_add)) end
for set, add in pairs(due_add) do redis.call('ZADD', set, unpack(add)) end
for _, one in ipairs(released) do group.release(sets, unpack(one)) end
for _, one in ipairs(puts) do group.put(sets, unpack(one)) end
for _, of in pairs(touched) do
  if of.unbegun then group.put_back(gate, of, of.unbegun, now) end
end
local turn = next(touched) and group.turns(sets, touched, now)
if turn and (not earliest or turn < earliest) then earliest = turn end
redis.call('HSET', run, unpack(records))
if #results_add > 0 then redis.call('HSET', results, unpack(results_add)) end
if #notes_add > 0 then redis.call('HSET', notes, unpack(notes_add)) end
if owns and not limits.own then
  redis.call('HSET', meta, 'own', 1)
  limits.own = true
end
-- A count that another program has spoilt is worth no outcome: hence `pcall`, here and elsewhere.
if counts.crash > 0 then redis.pcall('HINCRBY', meta, 'reclaimed', counts.crash) end
if counts.retry > 0 then redis.pcall('HINCRBY', meta, 'retried', counts.retry) end

local stores, limit = {jobs, run, results, notes, limits.terms and terms or nil}, n + 64
local is_kept
if limits.edges then
  local with = {now = now, book = book, event = event, record = record, when = when, term = term,
    group = group, touched = {}, dropped = {}, looks = 2 * TELL}
  depend.tell(sets, with, finished, TELL + n)
  for _, id in ipairs(with.dropped) do finished[#finished + 1] = id end
  if with.earliest and (not earliest or with.earliest < earliest) then earliest = with.earliest end
  if with.more then hint.push(wake, '-') end
  is_kept = function(id) return depend.is_held(sets, with, id) end
end
if counts.complete > 0 then
  redis.pcall('HINCRBY', meta, 'completed', counts.complete)
  retain.trim(meta, completed, stores, now, limits, 1, limit, is_kept)
end
if counts.fail > 0 then
  redis.pcall('HINCRBY', meta, 'failed', counts.fail)
  retain.trim(meta, failed, stores, now, limits, 2, limit, is_kept)
end
if counts.cancel > 0 then
  redis.pcall('HINCRBY', meta, 'cancelled', counts.cancel)
  retain.trim(meta, cancelled, stores, now, limits, 3, limit, is_kept,
    limits.terms and function(ids) hold.free(unique, terms, ids) end)
end
ended.tell(waiters, now, finished)
minute.write(minutes, now, 'r', counted)
if book then
  event.drained(book, 'settle', active, due)
  event.write(meta, events, book)
end
if held_until > now then gate.hold(meta, held_until) end
if limits.limited and gate.settled(meta, active, now, #gone_active, unbegun) then
  hint.push(wake, '-')
end
if earliest then hint.due(wake, keep, earliest, now) end
if large.at or limits.over then
  local stored = {completed = completed, results = results, run = run}
  local dropped = budget.add(meta, stored, record, large.bytes, counts.complete, retain.LARGE,
    is_kept)
  if large.at and dropped > 0 then reply[large.at] = 'full' end
end
return reply
