-- pop: take data that is due off the queue for good, oldest first.
-- @key   meta         reads settings, marks the clock, counts
-- @key   due          removes what is taken, adds what is reclaimed
-- @key   jobs         reads bodies, trims
-- @key   run          writes a record of what is taken, trims
-- @key   notes        adds why a job was refused, or that an attempt crashed
-- @key   terms        reads whose groups they are, and of what waited for these, trims
-- @key   order        removes and adds jobs of groups
-- @key   held         removes
-- @key   groups       reads and notes groups
-- @key   turns        moves groups' markers
-- @key   unique       frees the keys of what is trimmed
-- @key   expiring     adds what is freed
-- @key   blocked      removes what is freed, or cancelled
-- @key   edges        tells who waits for jobs that have ended
-- @key   active       removes what has expired
-- @key   completed    adds what is taken, trims
-- @key   failed       adds jobs that are no data, and poison
-- @key   cancelled    adds what is reclaimed and was to end, trims
-- @key   asked        forgets
-- @key   waiters      tells and forgets those who wait for a job's end
-- @key   wake         hints when something reclaimed is left
-- @key   keep         forgets the consumer's promise
-- @key   park         forgets the consumer's sleep
-- @key   claims       remembers what is taken
-- @key   results      sweeps, trims
-- @key   trash        sweeps
-- @key   events       tells listeners
-- @arg   consumer     text     who takes
-- @arg   seq          integer  number of this call; a repeat carries the same
-- @arg   count        integer  how many at most
-- @arg   previous_us  integer  only what was due so long ago
-- @reply ok now more refused lost, then per item: id body
-- @reply strangers    only jobs are due, in a queue that is none of data: they stay as they are
-- @reply stale        the consumer has since sent a later call
-- @include clock run_record wakeup reclaim last_claims retention read_budget
-- @later   event trash_sweep history notify_waiters group due_time constraints deps dedup_keys

-- more: less than was asked for, though there may be more: call again
-- refused: how many jobs of a worker's were met, which are no data, and have failed by this
-- lost: how many items the call took of which its repeat came too late
local MARK, REFUSALS, PIECE, SWEEP, TRIM = 3, 12, 50, 100, 100
local MOST = 250
local TELL, LOOKS = 100, 200
local LEVELS = 10
local REFUSAL = '{"type":"bide.PayloadError","message":"This is a job, not data: a DelayQueue met'
  .. ' it and cannot run it; have a Worker serve this queue, and retry the job."}'

count = math.min(count, MOST)

-- Removes before anything is added: a full server lets a script that has begun to remove go on.
redis.call('ZREM', keep, consumer)
redis.call('ZREM', park, consumer)

local now = clock.now(meta)
local set = redis.call('HMGET', meta, 'paused', 'clock', 'calm_until', 'rewound_until', 'lease_us',
  'trash', 'calm_from', 'listened', 'kind', 'large', 'groups', 'edges')
local book = set[8] and event.open(set[8], now)
local longest = tonumber(set[5]) or 0
local calm_until, calm_from, marked = clock.observe(meta, keep, park, tonumber(set[2]), now,
  longest)
if not calm_until then
  calm_until, calm_from = tonumber(set[3]) or 0, tonumber(set[7]) or 0
end

-- The same call again: its reply was lost. What it took is still there, among the completed.
local then_us, last_seq, last_ids = last_claims.read(claims, consumer)
if last_seq then
  if last_seq > seq then return {'stale'} end
  if last_seq == seq then
    local reply = {'ok', now, 1, 0, 0}
    for id in string.gmatch(last_ids, '%S+') do
      local line = redis.call('HGET', run, id)
      local mine = run_record.parse(line)
      if not line then reply[5] = reply[5] + 1 end
      if mine and mine.worker == consumer and mine.started == then_us
        and redis.call('ZSCORE', completed, id) then
        reply[#reply + 1] = id
        reply[#reply + 1] = redis.call('HGET', jobs, id)
      end
    end
    return reply
  end
else
  last_claims.forget_some(claims, now)
end

local stores = {jobs, run, results, notes, terms}
local sets = {meta = meta, due = due, jobs = jobs, run = run, notes = notes, active = active,
  asked = asked, completed = completed, failed = failed, cancelled = cancelled, terms = terms,
  expiring = expiring, blocked = blocked, edges = edges,
  has_groups = set[11], order = order, held = held, groups = groups, turns = turns}
local ctx = {now = now, book = book, event = event, run_record = run_record,
  due_time = due_time, constraints = constraints, group = group,
  touched = {}, dropped = {}, looks = LOOKS}
local function free_keys(ids) dedup_keys.free(unique, terms, ids) end
local again, given_up, reclaimed = reclaim.some(sets, run_record, history, event, group, book, now,
  now >= calm_until and now or calm_from)
if #given_up > 0 then notify_waiters.tell(waiters, now, given_up) end
if (tonumber(set[4]) or 0) > now then reclaim.clamp(active, now + longest) end
if set[6] then
  trash_sweep.some(meta, trash, stores, SWEEP, function(ids, i)
    if set[11] and i == group.GROUPED then group.forget(sets, ids, now) end
    if set[12] then deps.removed(edges, ids) end
  end)
end

-- Look: nothing is taken before its body is known. A reply has some megabytes at most; and few jobs
-- are refused at once, because their notes are long.
local ids, bodies, lines, scores, levels = {}, {}, {}, {}, {}
local items, strangers, full = 0, 0, false
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
      full = strangers >= REFUSALS
      if full then return end
      local n = #ids + 1
      ids[n], bodies[n], lines[n] = id, read[i], known[i]
      scores[n], levels[n] = picked[2 * i], level
      if read[i] and string.byte(read[i]) ~= MARK then
        strangers = strangers + 1
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

-- Take. A consumer that finds only jobs is at the wrong queue, unless that is marked as a queue of
-- data.
local reply = {'ok', now, 0, 0, 0}
local astray = strangers > 0 and items == 0 and set[9] ~= 'data'
if astray then
  reply[1] = 'strangers'
  ids = {}
end
local removes, completes, fails, records, notes_add = {}, {}, {}, {}, {}
local touched = {}
local taken = {}
-- Once, for all that are alike, as `due_time.us` says.
local now_score, fresh = string.format('%.0f', now), {}
for i, id in ipairs(ids) do
  local level, body = levels[i], bodies[i]
  local remove = removes[level] or {}
  removes[level] = remove
  remove[#remove + 1] = id
  if level == group.GROUPED then group.leave(sets, touched, scores[i], id) end
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
      event.add(book, is_data and 'completed' or 'failed', 'pop', id, consumer,
        rec and rec.attempt or 1, 0, is_data and '' or REFUSAL)
    end
    if is_data then
      taken[#taken + 1] = id
      reply[#reply + 1] = id
      reply[#reply + 1] = body
    else
      notes_add[#notes_add + 1] = id
      notes_add[#notes_add + 1] = history.add(redis.call('HGET', notes, id),
        history.error(run_record.parse(line) or run_record.unknown('', now), now, REFUSAL))
    end
  end
end
for level, remove in pairs(removes) do redis.call('ZREM', due[level], unpack(remove)) end
if next(touched) then group.turns(sets, touched, now) end
if not astray then last_claims.note(claims, consumer, now, seq, taken) end

local limits = retention.limits(meta)
if #records > 0 then redis.call('HSET', run, unpack(records)) end
if #taken > 0 then
  redis.call('ZADD', completed, unpack(completes))
  redis.pcall('HINCRBY', meta, 'completed', #taken)
  notify_waiters.tell(waiters, now, taken)
end
if #fails > 0 then
  redis.call('ZADD', failed, unpack(fails))
  redis.call('HSET', notes, unpack(notes_add))
  redis.pcall('HINCRBY', meta, 'failed', #fails / 2)
  local failed_ids = {}
  for i = 2, #fails, 2 do failed_ids[#failed_ids + 1] = fails[i] end
  notify_waiters.tell(waiters, now, failed_ids)
  reply[4] = #failed_ids
  for _, id in ipairs(failed_ids) do given_up[#given_up + 1] = id end
end
local is_kept
if set[12] then
  -- Jobs may wait for jobs that a consumer of data has met here; and for data, where the queue had
  -- jobs first and is marked as none of data.
  for _, id in ipairs(taken) do given_up[#given_up + 1] = id end
  deps.tell(sets, ctx, given_up, TELL)
  notify_waiters.tell(waiters, now, ctx.dropped)
  is_kept = function(id) return deps.is_held(sets, ctx, id) end
end
retention.trim(meta, completed, stores, now, limits, 1, #taken + 64, is_kept)
if marked then
  -- Once a second, so that a queue in which nothing is settled forgets what is old, too.
  retention.trim(meta, failed, stores, now, limits, 2, TRIM, is_kept)
  retention.trim(meta, cancelled, stores, now, limits, 3, TRIM, is_kept, free_keys)
end
if book then
  if #records + #given_up > 0 then event.drained(book, 'pop', active, due) end
  event.write(meta, events, book)
end
if #taken < count and (again or full or items == count) then reply[3] = 1 end
if reclaimed > 0 or ctx.more or ctx.earliest then wakeup.push(wake, '-') end
return reply
