-- settle: record the outcomes of claimed jobs; refuse an outcome whose token is not the latest.
-- @rest  id token outcome when data
-- @last  late    how late jobs have started since the last report, for `latency.report`
-- @reply ok now, then per job: ok | lost | gone | later | full
-- @include run_record retention notify_waiters latency

-- token: of the claim, and behind it, in 16 digits too, when the job started, if it has
-- later: not applied, because the notes of the jobs before it were long; send it again
-- full: applied; one or more results were dropped to stay within the budget
-- outcome: complete (when: how long to keep it, or nothing; data: result)
--        | retry (when; data: error) | fail (when: how long to keep it, or nothing; data: error)
--        | snooze (when; data: why it was not run: no worker serves it, or nothing; uses no
--          attempt)
--        | hold (when; as snooze, and no job of the queue is claimed before then)
--        | release (returned; when: anything if it had begun; uses no attempt)
--        | cancel (it was asked to stop, and did)
--        | crash (its process died under it, and under no other job; when: how long to keep it if
--          it has failed by that, or nothing; data: error; uses no attempt)
local STAMP = {complete = 'C', retry = 'R', fail = 'F', snooze = 'S', hold = 'H', release = 'L',
  cancel = 'X', crash = 'K'}
local AGAIN = {retry = true, snooze = true, hold = true, release = true, crash = true}
local KIND = {complete = 'completed', retry = 'retried', fail = 'failed', snooze = 'rescheduled',
  release = 'rescheduled', cancel = 'cancelled', crash = 'reclaimed'}
local ENDS = {complete = 1, fail = 2, cancel = 3} -- kinds as `retention` has them
local RAN = {complete = true, retry = true, fail = true, cancel = true}
local CRASHES, TELL = 3, 100
-- An error is added to the job's notes, which may be 90 KB long and are read and written again. So
-- a call reads this many bytes of them, and leaves further errors to the next call. The notes of a
-- few jobs are read by one command, which may exceed the limit by that much.
local NOTED_BYTES, NOTED_AT_ONCE = 1000000, 4

local ids, n = {}, 0
for i = rest, #ARGV, 5 do
  local outcome, at = ARGV[i + 2], ARGV[i + 3]
  local length = #ARGV[i + 1]
  if not STAMP[outcome]
    or (length ~= 16 and (length ~= 32 or not string.find(ARGV[i + 1], '^%d+$', 17)))
    or ((at ~= '' or outcome == 'retry' or outcome == 'snooze' or outcome == 'hold')
      and not due_time.valid(at)) then
    return redis.error_reply('BADARG settle rest')
  end
  n = n + 1
  ids[n] = ARGV[i]
end
if n == 0 then return redis.error_reply('BADARG settle rest') end
if not latency.valid(late) then return redis.error_reply('BADARG settle late') end

local now_score = string.format('%.0f', now) -- once, as `due_time.us` says
local lines = redis.call('HMGET', run, unpack(ids))
local leases = redis.call('ZMSCORE', active, unpack(ids))
local asks = redis.call('EXISTS', asked) == 1 and redis.call('ZMSCORE', asked, unpack(ids))
local limits = retention.limits()
if limits.listened then event.open(limits.listened) end
local asked_of = limits.groups and redis.call('HMGET', terms, unpack(ids))
local puts, released = {}, {}
local reply = {'ok', now}
local gone_active, records, results_add, notes_add = {}, {}, {}, {}
local large = {bytes = 0}
local ended, due_add = {{}, {}, {}}, {}
local settled, finished, counted = {}, {}, {}
local earliest, owns
local held_until, unbegun = 0, {}
local room = NOTED_BYTES
local noted = {} -- the notes that were read, by the place of their job in `ids`
local counts = {complete = 0, retry = 0, fail = 0, snooze = 0, release = 0, cancel = 0,
  crash = 0}

local function again(rec, id, at, grp)
  if grp then
    puts[#puts + 1] = {grp, at, id}
    return
  end
  local set = due[rec.strikes >= 2 and 11 or rec.missing and 12 or 10 - rec.priority]
  local add = due_add[set]
  if not add then
    add = {}
    due_add[set] = add
  end
  add[#add + 1] = at
  add[#add + 1] = id
  if not earliest or at < earliest then earliest = at end
end

-- It was claimed and has not begun: what it took of the rates of its queue and of its group. If its
-- time to begin has passed meanwhile, a claim has looked at that already, and must look again.
local function give_back(rec, grp, id, due_us)
  unbegun[#unbegun + 1] = rec.started
  if limits.constraints then
    local by = constraints.expires(id, redis.call('HGET', terms, id) or '',
      run_record.due_from(rec, due_us))
    if by and (not earliest or by < earliest) then earliest = by end
  end
  if grp and grp.rate then
    grp.unbegun = grp.unbegun or {}
    grp.unbegun[#grp.unbegun + 1] = rec.started
  end
end

local function notes_of(k)
  if noted[k] == nil then
    local places, wanted = {}, {}
    for at = k, n do
      local i = rest + (at - 1) * 5
      if ARGV[i + 2] ~= 'complete' and ARGV[i + 4] ~= '' then
        places[#places + 1], wanted[#wanted + 1] = at, ids[at]
        if #wanted == NOTED_AT_ONCE then break end
      end
    end
    for at, found in ipairs(redis.call('HMGET', notes, unpack(wanted))) do
      noted[places[at]] = found
    end
  end
  return noted[k]
end

local function apply(k, stamp, outcome, at, data, started)
  local id, line, verb = ids[k], lines[k], outcome
  local grp = asked_of and asked_of[k] and group.touch(asked_of[k])
  if grp then released[#released + 1] = {grp, id} end
  gone_active[#gone_active + 1] = id
  counts[outcome] = counts[outcome] + 1
  line = run_record.settled(line, stamp, started)
  local rec
  local due_us = 0
  if data ~= '' and outcome ~= 'complete' then
    rec = run_record.parse(line) or run_record.unknown(string.sub(line, 1, 34))
    if outcome ~= 'snooze' or not rec.missing then -- of looks in a row, the first says it
      local before = notes_of(k)
      room = room - #(before or '') - #data
      notes_add[#notes_add + 1] = id
      notes_add[#notes_add + 1] = history.add(before, history.error(rec, data))
    end
  end
  if outcome == 'crash' then
    rec = rec or run_record.parse(line) or run_record.unknown(string.sub(line, 1, 34))
    rec.crashes, rec.attempt, rec.alone, rec.missing = rec.crashes + 1, rec.attempt - 1, 0, nil
    line = run_record.format(rec.head, rec)
    if rec.crashes >= CRASHES then
      outcome = 'fail'
      counts.fail = counts.fail + 1
    end
  end
  if outcome == 'crash' then
    due_us = run_record.due_again(rec)
    again(rec, id, due_us, grp)
  elseif AGAIN[outcome] then
    rec = rec or run_record.parse(line) or run_record.unknown(string.sub(line, 1, 34))
    rec.alone = 0
    if outcome ~= 'retry' then rec.attempt = rec.attempt - 1 end
    if outcome == 'release' then
      -- What has begun once does not expire, and takes no more items: see `run_record.is_unbegun`.
      if at ~= '' then rec.first, rec.missing = rec.first or rec.due, nil end
      due_us = run_record.due_again(rec)
      if at == '' then give_back(rec, grp, id, due_us) end
    else
      rec.first = rec.first or rec.due
      if outcome == 'snooze' and data ~= '' then -- it has not run: what crashed with it, still did
        rec.missing = rec.missing or rec.started
        give_back(rec, grp, id, rec.first)
      else
        rec.strikes, rec.crashes, rec.missing = 0, 0, nil
      end
      due_us = due_time.us(at)
    end
    again(rec, id, due_us, grp)
    line = run_record.format(rec.head, rec)
  else
    finished[#finished + 1] = id
    local kind = ENDS[outcome]
    if outcome == 'complete' and data ~= '' then
      results_add[#results_add + 1] = id
      results_add[#results_add + 1] = data
      if #data >= retention.LARGE then
        large.bytes, large.at = large.bytes + #data, k + 2
      end
    end
    local score = now_score
    if at ~= '' and outcome ~= 'cancel' then
      local kept_us, least = tonumber(string.sub(at, 2)), retention.SPARE
      score = now + math.max(kept_us, least) - math.max(limits[2 * kind], least)
      rec = rec or run_record.parse(line) or run_record.unknown(string.sub(line, 1, 34))
      rec.ended = now
      owns = true
      line = run_record.format(rec.head, rec)
    end
    local add = ended[kind]
    add[#add + 1] = score
    add[#add + 1] = id
  end
  records[#records + 1] = id
  records[#records + 1] = line
  if book then
    local was = run_record.parse(lines[k]) or run_record.unknown('')
    event.add(KIND[outcome], verb, id, was.worker, was.attempt, due_us,
      outcome == 'complete' and '' or data)
  end
end

for k = 1, n do
  local i = rest + (k - 1) * 5
  local id, outcome, line = ids[k], ARGV[i + 2], lines[k]
  local token = string.sub(ARGV[i + 1], 1, 16)
  local word = 'lost'
  -- What nearly all are stands first: a token that is held was never settled, because tokens grow.
  if line and leases[k] and not settled[id] and run_record.stamp(line) == token .. '-' then
    if room <= 0 and outcome ~= 'complete' and ARGV[i + 4] ~= '' then
      word = 'later'
    else
      settled[id] = token .. outcome
      local effect = asks and asks[k] and AGAIN[outcome] and 'cancel' or outcome
      if outcome == 'hold' then
        held_until = math.max(held_until, (due_time.us(ARGV[i + 3])))
      end
      if effect == 'hold' then effect = 'snooze' end
      local started = #ARGV[i + 1] == 32 and string.sub(ARGV[i + 1], 17) or nil
      apply(k, STAMP[outcome], effect, ARGV[i + 3], ARGV[i + 4], started)
      if RAN[outcome] then latency.count(counted, math.max(0, now - tonumber(started or token))) end
      word = 'ok'
    end
  elseif not line then
    word = 'gone'
  elseif settled[id] == token .. outcome or run_record.remembers(line, token, STAMP[outcome]) then
    word = 'ok'
  end
  reply[k + 2] = word
end
if #gone_active == 0 then
  latency.report(late)
  return reply
end

-- Removes first: a full server lets taken work finish.
redis.call('ZREM', active, unpack(gone_active))
if asks then redis.call('ZREM', asked, unpack(gone_active)) end
if limits.constraints and #finished > 0 then redis.call('ZREM', expiring, unpack(finished)) end
for kind, set in ipairs({completed, failed, cancelled}) do
  if #ended[kind] > 0 then redis.call('ZADD', set, unpack(ended[kind])) end
end
for set, add in pairs(due_add) do redis.call('ZADD', set, unpack(add)) end
if #released > 0 then
  for _, one in ipairs(released) do group.release(unpack(one)) end
  for _, one in ipairs(puts) do group.put(unpack(one)) end
  for _, grp in pairs(group.touched) do
    if grp.unbegun then group.put_back(grp, grp.unbegun) end
  end
  local turn = group.turns()
  if turn and (not earliest or turn < earliest) then earliest = turn end
end
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

if limits.edges then finish.tell(true, finished, TELL + n) else notify_waiters.tell(finished) end
for outcome, kind in pairs(ENDS) do
  if counts[outcome] > 0 then
    redis.pcall('HINCRBY', meta, KIND[outcome], counts[outcome])
    -- As many as came, not `n`: outcomes of several kinds would remove so many of each.
    retention.trim(limits, kind, counts[outcome] + 64)
  end
end
latency.write('r', counted)
latency.report(late)
if book then finish.drained('settle') end
if limits.edges then finish.close() elseif book then event.write() end
if held_until > now then -- the latest moment holds
  local before = tonumber(redis.call('HGET', meta, 'held_until')) or 0
  redis.call('HSET', meta, 'limited', 1, 'held_until', math.max(before, held_until))
  locate.recall_all()
end
if limits.limited and rate_limit.settled(active, #gone_active, unbegun) then
  wakeup.push('-')
end
if earliest then wakeup.due(earliest) end
if large.at or limits.over then
  local dropped = budget.add(limits.edges, large.bytes, counts.complete)
  if large.at and dropped > 0 then reply[large.at] = 'full' end
end
return reply
