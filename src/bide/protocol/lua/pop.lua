-- pop: remove and return due items, oldest first.
-- @arg   consumer     text     who takes
-- @arg   seq          integer  number of this call; a repeat carries the same
-- @arg   count        integer  how many at most
-- @arg   previous_us  integer  only what was due so long ago
-- @reply ok now more refused lost, then per item: id body
-- @reply not_data     only jobs are due, in a queue that is none of data: they stay as they are
-- @reply stale        the consumer has since sent a later call
-- @include clock run_record wakeup reclaim last_claims retention read_budget

-- more: less than was asked for, though there may be more: call again
-- refused: how many jobs of a worker's were met, which are no data, and have failed by this
-- lost: how many items the call took of which its repeat came too late
local MARK, REFUSALS, PIECE, SWEEP, TRIM = 3, 12, 50, 100, 100
local MOST = 250
local TELL = 100
local LEVELS = 10
local REFUSAL = '{"type":"bide.PayloadError","message":"This is a job, not data, and a DelayQueue'
  .. ' cannot run it; let a Worker serve this queue, and retry the job."}'

count = math.min(count, MOST)

-- Removes before anything is added: a full server lets a script that has begun to remove continue.
redis.call('ZREM', keep, consumer)
redis.call('ZREM', park, consumer)

local set = redis.call('HMGET', meta, 'paused', 'clock', 'calm_until', 'rewound_until', 'lease_us',
  'trash', 'calm_from', 'listened', 'kind', 'large', 'groups', 'edges')
if set[8] then event.open(set[8]) end
local longest = tonumber(set[5]) or 0
local calm_until, calm_from, marked = clock.observe(tonumber(set[2]), longest)
if not calm_until then
  calm_until, calm_from = tonumber(set[3]) or 0, tonumber(set[7]) or 0
end

-- The same call again: its reply was lost. What it took is still there, among the completed.
local repeated = last_claims.repeated(consumer, seq)
if repeated == 'stale' then return {'stale'} end
if repeated then
  local reply = {'ok', now, 1, 0, 0}
  for _, one in ipairs(repeated) do
    if not one.line then reply[5] = reply[5] + 1 end
    if one.rec and redis.call('ZSCORE', completed, one.id) then
      reply[#reply + 1] = one.id
      reply[#reply + 1] = redis.call('HGET', jobs, one.id)
    end
  end
  return reply
end

local again, given_up, reclaimed = reclaim.some(now >= calm_until and now or calm_from, set[11])
if (tonumber(set[4]) or 0) > now then reclaim.clamp(now + longest) end
if set[6] then trash_sweep.some(SWEEP, set[12]) end

-- Look: nothing is taken before its body is known. A reply has some megabytes at most; and few jobs
-- are refused at once, because their notes are long.
local ids, bodies, lines, scores, levels = {}, {}, {}, {}, {}
local items, not_data, full = 0, 0, false
local room = read_budget.room()

local function look(level)
  local from = 0
  repeat
    local size = math.min(PIECE, count - items)
    local picked = redis.call('ZRANGEBYSCORE', due[level], '-inf', now - previous_us, 'WITHSCORES',
      'LIMIT', from, size)
    local some = {}
    for i = 1, #picked, 2 do some[#some + 1] = picked[i] end
    if #some == 0 then return end
    local is_cut = set[10] and read_budget.cut(room, jobs, some)
    if #some == 0 then full = true return end
    local read = redis.call('HMGET', jobs, unpack(some))
    local known = redis.call('HMGET', run, unpack(some))
    for i, id in ipairs(some) do
      full = not_data >= REFUSALS
      if full then return end
      local n = #ids + 1
      ids[n], bodies[n], lines[n] = id, read[i], known[i]
      scores[n], levels[n] = picked[2 * i], level
      if read[i] and string.byte(read[i]) ~= MARK then
        not_data = not_data + 1
      else
        items = items + 1
      end
    end
    from = from + #some
    full = is_cut
  until full or #some < size or items >= count
end

if not set[1] then
  for level = 1, #due do
    if items >= count or full then break end
    look(level)
  end
end

-- Take. A consumer that finds only jobs is at the wrong queue, unless that is marked to hold data.
local reply = {'ok', now, 0, 0, 0}
local only_jobs = not_data > 0 and items == 0 and set[9] ~= 'data'
if only_jobs then
  reply[1] = 'not_data'
  ids = {}
end
local removes, completes, fails, records, notes_add = {}, {}, {}, {}, {}
local taken = {}
-- Once, for all that are alike, as `due_time.us` says.
local now_score, fresh = string.format('%.0f', now), {}
for i, id in ipairs(ids) do
  local level, body = levels[i], bodies[i]
  local remove = removes[level] or {}
  removes[level] = remove
  remove[#remove + 1] = id
  if level == #due then group.leave(scores[i], id) end
  if body then
    local line = lines[i]
    local rec = line and run_record.parse(line)
    local is_data = string.byte(body) == MARK
    local outcome = is_data and 'C' or 'F'
    if rec then
      local token = math.max(now, tonumber(run_record.token(line)) + 1)
      rec.attempt, rec.started, rec.worker, rec.alone = rec.attempt + 1, now, consumer, 0
      rec.due = tonumber(scores[i])
      local head = run_record.head(token, run_record.stamp(line))
      line = run_record.format(run_record.settled(head, outcome), rec)
    else
      local kind = outcome .. level
      fresh[kind] = fresh[kind] or run_record.settled(run_record.fresh(now), outcome)
        .. run_record.tail(math.max(LEVELS - level, 0), 1, 0, 0, 0, now, consumer)
      line = fresh[kind] .. scores[i]
    end
    records[#records + 1] = id
    records[#records + 1] = line
    local add = is_data and completes or fails
    add[#add + 1] = now_score
    add[#add + 1] = id
    if book then
      event.add(is_data and 'completed' or 'failed', 'pop', id, consumer, rec and rec.attempt or 1,
        0, is_data and '' or REFUSAL)
    end
    if is_data then
      taken[#taken + 1] = id
      reply[#reply + 1] = id
      reply[#reply + 1] = body
    else
      notes_add[#notes_add + 1] = id
      notes_add[#notes_add + 1] = history.add(redis.call('HGET', notes, id),
        history.error(run_record.parse(line) or run_record.unknown(''), REFUSAL))
    end
  end
end
for level, remove in pairs(removes) do redis.call('ZREM', due[level], unpack(remove)) end
if removes[#due] then group.turns() end
if not only_jobs then last_claims.note(consumer, seq, taken) end

local limits = retention.limits()
if #records > 0 then redis.call('HSET', run, unpack(records)) end
if limits.constraints and #ids > 0 then redis.call('ZREM', expiring, unpack(ids)) end
if #taken > 0 then
  redis.call('ZADD', completed, unpack(completes))
  redis.pcall('HINCRBY', meta, 'completed', #taken)
end
if #fails > 0 then
  redis.call('ZADD', failed, unpack(fails))
  redis.call('HSET', notes, unpack(notes_add))
  redis.pcall('HINCRBY', meta, 'failed', #fails / 2)
  local failed_ids = {}
  for i = 2, #fails, 2 do failed_ids[#failed_ids + 1] = fails[i] end
  reply[4] = #failed_ids
  for _, id in ipairs(failed_ids) do given_up[#given_up + 1] = id end
end
-- Jobs may wait for jobs that were met here, and for data of a queue that is not marked as such.
for _, id in ipairs(taken) do given_up[#given_up + 1] = id end
if set[12] then finish.tell(true, given_up, TELL) else notify_waiters.tell(given_up) end
retention.trim(limits, 1, #taken + 64)
if marked then
  -- Once a second, so that a queue in which nothing is settled forgets what is old, too.
  retention.trim(limits, 2, TRIM)
  retention.trim(limits, 3, TRIM)
end
if book then
  if #records + #given_up > 0 then finish.drained('pop') end
  event.write()
end
if #taken < count and (again or full or items == count) then reply[3] = 1 end
if reclaimed > 0 or (set[12] and (deps.more or deps.earliest)) then wakeup.push('-') end
return reply
