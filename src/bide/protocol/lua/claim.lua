-- claim: claim due jobs, oldest first, under a lease; return when to claim again.
-- @arg   worker    text     the name of the worker
-- @arg   seq       integer  the number of this claim; a repeat has the same number
-- @arg   count     integer  the maximum number of jobs: the worker's free slots
-- @arg   lease_us  integer  how long the jobs are held if their leases are not renewed
-- @arg   busy      integer  number of jobs that the worker runs already
-- @arg   arm       integer  2 to wait with free slots, 1 to wait if nothing was taken, 0 not to
-- @arg   flags     text     n, e and s, as below, in any order
-- @arg   ahead_us  integer  also claim jobs due within this time, which the worker starts when due
-- @arg   slots     integer  number of jobs that the worker can start at once
-- @reply ok now until deadline more alone drain thin post lost soon, then: id body token tries due
-- @reply stale     the worker has since sent a later claim
-- @include clock run_record wakeup timekeepers reclaim last_claims read_budget

-- arm, 3: as 2, and return whether the rate of a group holds a due job back
-- flags, for jobs that a worker without their task returned: e: claim them also before they are
-- due again; s: the worker has run one
-- flags, n: claim the newest due jobs of a priority first
-- thin: the names of schedules of which more times are needed, with spaces between them
-- more: 1 if there are more jobs, 2 if a limit holds due jobs back
-- post: 1 if there are messages to other queues
-- lost: for each job whose lease has ended: id token tries due worker, and 1 if it has failed
-- ahead_us, negative: only jobs that were due so long ago; then the deadline is the caller's
-- soon: 1 if the deadline is the due time of a job, which can be claimed ahead
-- tries: the attempt; for a job that was claimed before, the result of `run_record.tries`
local PATIENCE, LONG_PATIENCE, DRAIN_EVERY = 10000000, 60000000, 30000000
local SWEEP, TRIM = 100, 100
local MARKED, TELL = 200, 200
local LEVELS, ALONE, UNSERVED, MOST, GROUPED = 10, 11, 12, 250, 150
-- As long as `outcome.PATIENCE`; then a minute; so many of the jobs that run are looked at.
local UNSERVED_US, AGAIN_US, RUNNING, RUNS_US = 600000000, 60000000, 100, 5000000
local TURNS, SPARE_STEPS = 20, 16 -- a claim looks at so many turns of groups at most
count = math.min(count, MOST)
ahead_us = math.min(ahead_us, run_record.AHEAD)
local eager, more_unserved = string.find(flags, 'e', 1, true), false
local newest = string.find(flags, 'n', 1, true)

-- Removes before anything is added: a full server lets a script that has begun to remove continue.
redis.call('ZREM', keep, worker)
redis.call('ZREM', park, worker)

local lease_end = now + lease_us
local set = redis.call('HMGET', meta, 'paused', 'clock', 'calm_until', 'rewound_until', 'lease_us',
  'trash', 'drain_until', 'calm_from', 'listened', 'large', 'terms', 'groups', 'scheduled', 'side',
  'limited', 'edges', 'rewinding', 'exact_until', 'ahead_until')
local has_constraints, has_groups, has_schedules, has_edges = set[11], set[12], set[13], set[16]
if has_groups then count = math.min(count, GROUPED) end -- whose turns take their time
if set[9] then event.open(set[9]) end
local calm_until, calm_from, marked = clock.observe(tonumber(set[2]), lease_us)
local rewinding = calm_until == 0 and clock.TURNS or set[17]
if not calm_until then
  calm_until, calm_from = tonumber(set[3]) or 0, tonumber(set[8]) or 0
end
local rewound = (tonumber(set[4]) or 0) > now
local exact_until = tonumber(set[18]) or 0
if exact_until > now and exact_until <= now + 2 * run_record.AHEAD then
  ahead_us = math.min(ahead_us, 0)
end
if lease_us > (tonumber(set[5]) or 0) then redis.call('HSET', meta, 'lease_us', lease_us) end

-- The same claim again: its reply was lost. What it took and still holds, renewed.
local repeated = last_claims.repeated(worker, seq)
if repeated == 'stale' then return {'stale'} end
if repeated then
  -- It takes nothing new: a copy that arrives late would take jobs that no worker runs. It is not
  -- armed either: the worker's next claim says when to come back.
  local reply = {'ok', now, 0, 0, 1, 0, 0, '', 0, {}, 0}
  for _, one in ipairs(repeated) do
    if one.rec and redis.call('ZSCORE', active, one.id) then
      redis.call('ZADD', active, lease_end, one.id)
      local n = #reply
      reply[n + 1], reply[n + 2] = one.id, redis.call('HGET', jobs, one.id)
      reply[n + 3], reply[n + 4] = tonumber(run_record.token(one.line)), run_record.tries(one.rec)
      reply[n + 5] = one.rec.due
      if one.rec.alone == 1 then reply[6] = 1 end
    end
  end
  return reply
end

local till = now + math.min(ahead_us, 0) -- a job that is due by then is taken

local more, given_up, _, lost = reclaim.some(now >= calm_until and now or calm_from, has_groups)
if #given_up > 0 then notify_waiters.tell(given_up) end
local may_expire, expired = false, {}
if has_constraints then
  may_expire, expired = expire.some(has_edges and deps_sweep.is_over)
  more = more or may_expire
end
if rewound then
  more = reclaim.clamp(now + math.max(lease_us, tonumber(set[5]) or 0)) or more
end
if has_groups then
  if rewinding then more = group_turns.rewind(rewinding) or more end
  more = group_turns.forget_rested() or more
elseif rewinding then
  redis.call('HDEL', meta, 'rewinding')
end
if set[6] then trash_sweep.some(SWEEP, has_edges) end
if has_edges then deps_sweep.go_on({given_up, expired}, MARKED, TELL) end

if marked then
  -- Once a second, so that a queue in which nothing is settled forgets what is old, too.
  local limits = retention.limits()
  for kind = 1, 3 do retention.trim(limits, kind, TRIM) end
end

-- Fire. While the queue is paused, no schedule fires; what that misses is for each to say.
local paused = set[1]
local fires_at, thin, adds_to_groups
if has_schedules and not paused then
  fires_at, thin, adds_to_groups = schedule_fire.some()
  has_groups = has_groups or adds_to_groups
  if fires_at and fires_at <= now then more = true end
end

-- Take.
local reply = {'ok', now, 0, 0, 0, 0, 0, thin or '', 0, lost, 0}
local alone = 0
local taken = {}
local room = read_budget.room()
local limited = set[15] and rate_limit.open(active)
local overdue, held_back, job_at = false, false, nil

-- Whether workers run jobs that one without their task returned. A job that has waited for long
-- does not fail then: those that have its task may be busy.
if string.find(flags, 's', 1, true) then redis.call('HSET', meta, 'served_at', now) end
local is_served
local function served()
  if is_served == nil then
    local at = tonumber(redis.call('HGET', meta, 'served_at'))
    is_served = at and math.abs(now - at) < UNSERVED_US
    local ids = is_served and {} or redis.call('ZREVRANGE', active, 0, RUNNING - 1)
    for _, line in ipairs(#ids > 0 and redis.call('HMGET', run, unpack(ids)) or {}) do
      local rec = line and run_record.parse(line)
      -- One that has just begun may be on its way back.
      if rec and rec.missing and rec.worker ~= worker and rec.started < now - RUNS_US then
        is_served = true
      end
    end
  end
  return is_served
end

-- `at_level`: that of a group whose turn it is. Returns how many were looked at.
local function take(level, picked, at_level)
  local ids = {}
  for i = 1, #picked, 2 do ids[#ids + 1] = picked[i] end
  if set[10] and read_budget.cut(room, jobs, ids) then more = true end
  if #ids == 0 then return 0 end
  redis.call('ZREM', due[level], unpack(ids))
  local bodies = redis.call('HMGET', jobs, unpack(ids))
  local lines = redis.call('HMGET', run, unpack(ids))
  local asked_of = has_constraints and redis.call('HMGET', terms, unpack(ids))
  local leases, records = {}, {}
  local lease_score = string.format('%.0f', lease_end) -- once, as `due_time.us` says
  local fresh_head = run_record.fresh(now)
  local priority = math.max(LEVELS - (at_level or level), 0)
  local fresh_tail = run_record.tail(priority, 1, 0, 0, alone, now, worker)
  for i, id in ipairs(ids) do
    local body, line, at = bodies[i], lines[i], picked[2 * i]
    local rec = line and run_record.parse(line)
    local due_at = tonumber(at)
    -- A job that is claimed ahead starts when it is due.
    local starts = level == UNSERVED and now or math.max(now, due_at)
    local begins_by = asked_of
      and constraints.begins_by(asked_of[i], run_record.due_from(rec, due_at))
    if begins_by and begins_by <= starts and run_record.is_unbegun(rec) then
      expire.one(id, at_level or level)
      expired[#expired + 1] = id
    elseif body then
      local token, tries = starts, 1
      if rec then
        if level == UNSERVED then
          due_at = math.min(due_at, now)
          at = string.format('%.0f', due_at)
        end
        if rec.missing and now - rec.missing > UNSERVED_US and served() then
          rec.missing = now - UNSERVED_US + AGAIN_US
        end
        token = math.max(starts, tonumber(run_record.token(line)) + 1)
        rec.attempt, rec.started, rec.worker, rec.alone = rec.attempt + 1, starts, worker, alone
        rec.due = due_at
        tries = run_record.tries(rec)
        line = run_record.format(run_record.head(token, run_record.stamp(line)), rec)
      elseif starts > now then
        line = run_record.fresh(starts)
          .. run_record.tail(priority, 1, 0, 0, alone, starts, worker) .. at
      else
        line = fresh_head .. fresh_tail .. at
      end
      records[#records + 1] = id
      records[#records + 1] = line
      leases[#leases + 1] = lease_score
      leases[#leases + 1] = id
      taken[#taken + 1] = id
      if book then
        event.add('active', 'claim', id, worker, rec and rec.attempt or 1, due_at, '')
      end
      local n = #reply
      reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = id, body, token, tries
      reply[n + 5] = due_at
    end
  end
  if #leases > 0 then
    redis.call('ZADD', active, unpack(leases))
    redis.call('HSET', run, unpack(records))
  end
  return #ids
end

local heads = {} -- of each level, when the first job is due that is not taken
local deadline
local function by(at)
  if at and at > now and (not deadline or at < deadline) then deadline = at end
end

-- Takes up to `spare` jobs that are due a moment later, in that order. With the reply, the worker
-- knows how long to wait for each: it arrives later than `now`, so no job can start early.
local function take_ahead(spare)
  local levels, until_us = {}, now + ahead_us
  for level = 1, LEVELS do
    if heads[level] and heads[level] <= until_us then levels[#levels + 1] = level end
  end
  if #levels == 0 or spare <= 0 then return end
  -- If several levels have more than fit, the latest moment is looked for until which all fit: to
  -- read and sort as many jobs of each level would take ten times as long as to take what fits.
  local function is_too_late(at)
    local jobs_until = 0
    for _, level in ipairs(levels) do
      jobs_until = jobs_until + redis.call('ZCOUNT', due[level], '-inf', at)
    end
    return jobs_until > spare
  end
  local all_fit = until_us
  if #levels > 1 and is_too_late(until_us) then
    local too_late = until_us
    all_fit = now
    while too_late - all_fit > 1 do
      local middle = math.floor((all_fit + too_late) / 2)
      if is_too_late(middle) then too_late = middle else all_fit = middle end
    end
  end
  local picks, latest, left = {}, 0, spare
  local function pick(from, to)
    for _, level in ipairs(levels) do
      local found = left > 0 and redis.call('ZRANGEBYSCORE', due[level], from, to, 'WITHSCORES',
        'LIMIT', 0, left) or {}
      local picked = picks[level] or {}
      picks[level] = picked
      for i = 1, #found, 2 do
        picked[#picked + 1], picked[#picked + 2] = found[i], found[i + 1]
        latest = math.max(latest, tonumber(found[i + 1]))
      end
      left = left - #found / 2
    end
  end
  pick('-inf', all_fit)
  if all_fit < until_us then pick('(' .. string.format('%.0f', all_fit), all_fit + 1) end
  for _, level in ipairs(levels) do
    if #picks[level] > 0 then
      take(level, picks[level])
      heads[level] = tonumber(redis.call('ZRANGE', due[level], 0, 0, 'WITHSCORES')[2])
    end
  end
  -- `pause` and `purge` wait until these have started, or have been returned.
  local before = math.min(tonumber(set[19]) or 0, now + run_record.AHEAD)
  redis.call('HSET', meta, 'ahead_until', math.max(latest, before))
end

-- A suspect runs as the only job of its worker, so that a crash names its culprit. A busy worker
-- leaves it to an idle one. If it waits long, one worker after another drains for a while, and if
-- none of them becomes idle in that time, it runs beside others.
local suspect = redis.call('ZRANGE', due[ALONE], 0, 0, 'WITHSCORES')
local suspect_at = tonumber(suspect[2])
local steps = {left = 2 * math.min(count, TURNS) + SPARE_STEPS}
local function take_turns(level, wanted)
  group_turns.take(level, wanted, steps, take, taken)
end
local group_at = has_groups and group_turns.first(ALONE)
local function take_suspect()
  if group_at == suspect_at then take_turns(ALONE, 1) else take(ALONE, suspect) end
end
if group_at and (not suspect_at or group_at < suspect_at) then
  suspect_at = group_at
else
  group_at = nil
end
if suspect_at and not paused then
  if suspect_at > till then
    if busy == 0 then by(suspect_at) end
  elseif limited and limited.room < 1 then
    overdue = true
  elseif busy == 0 and count > 0 then
    alone = 1
    take_suspect()
    if group_at and #taken == 0 then alone = 0 else count = #taken end
  elseif now - suspect_at > LONG_PATIENCE and count > 0 then
    take_suspect()
  elseif now - suspect_at > PATIENCE and now > (tonumber(set[7]) or 0) then
    redis.call('HSET', meta, 'drain_until', now + DRAIN_EVERY)
    reply[7] = 1
    count = 0
  end
end

if not paused then
  local most = limited and math.min(count, limited.room) or count
  -- Jobs that a worker without their task returned: one that has it takes them as it can. They
  -- have no priority: half of the slots are theirs, every second odd one, and what others leave.
  local free, now_or_later = most - #taken, eager and '+inf' or now
  local is_any = redis.call('EXISTS', due[UNSERVED]) == 1
  local share = is_any and math.floor(free / 2) + free % 2 * (seq % 2) or 0
  local function take_unserved(some)
    local picked = redis.call('ZRANGEBYSCORE', due[UNSERVED], '-inf', now_or_later, 'WITHSCORES',
      'LIMIT', 0, some)
    if take(UNSERVED, picked) == some then more_unserved = eager end
  end
  if share > 0 then
    local all = room.left
    room.left = all / 2
    take_unserved(share)
    room.left = room.left + all / 2
  end
  for step = 1, is_any and LEVELS + 1 or LEVELS do
    local level = step > LEVELS and UNSERVED or step
    local turn_at = has_groups and level ~= UNSERVED and group_turns.first(level)
    if level == UNSERVED and most > #taken then take_unserved(most - #taken) end
    local head = redis.call('ZRANGE', due[level], 0, 0, 'WITHSCORES')
    if turn_at and turn_at <= now and most > #taken then
      take_turns(level, group_turns.share(level, set[14] == '1', most - #taken))
      turn_at = group_turns.first(level)
    end
    if turn_at and turn_at <= now then overdue = true end
    by(turn_at)
    local wanted = most - #taken
    if head[2] and tonumber(head[2]) <= till then
      if wanted > 0 then
        local picked = newest
          and redis.call('ZREVRANGEBYSCORE', due[level], till, '-inf', 'WITHSCORES',
            'LIMIT', 0, wanted)
          or redis.call('ZRANGEBYSCORE', due[level], '-inf', till, 'WITHSCORES',
            'LIMIT', 0, wanted)
        take(level, picked)
        head = redis.call('ZRANGE', due[level], 0, 0, 'WITHSCORES')
      end
      if head[2] and tonumber(head[2]) <= till then overdue = true end
    end
    heads[level] = tonumber(head[2])
    if overdue then break end
  end
  if ahead_us > 0 and not (overdue or limited or steps.met_suspect or alone == 1) then
    take_ahead(math.min(count, slots) - #taken)
  end
  for level = 1, LEVELS do
    local at = heads[level]
    by(at)
    if not limited and at and at > now and (not job_at or at < job_at) then job_at = at end
  end
  by(heads[UNSERVED])
  -- Turns that are left though slots are free, or a suspect that was met: to be looked at at once.
  if steps.met_suspect or (overdue and steps.left == 0) then more = true end
  if limited then
    overdue, deadline, held_back = rate_limit.close(limited, #taken, overdue, deadline)
  end
  -- A burst ends when nothing is due. It must know whether a rate holds a job back.
  if has_groups and arm == 3 and busy == 0 and #taken == 0 and not overdue then
    for level = 1, LEVELS do
      held_back = held_back or group_turns.holds_back(level)
    end
  end
end

by(fires_at)
if has_constraints then
  if has_edges then
    -- What was taken and had expired has ended only now.
    deps_sweep.go_on({expired}, 0, TELL)
    notify_waiters.tell(deps.dropped)
    by(deps.earliest)
    if deps.earliest and deps.earliest <= now then more = true end
    if #deps_edges.marked(1) > 0 then more = true end
    if #redis.call('ZRANGEBYLEX', edges, '[?', '(A', 'LIMIT', 0, 1) > 0 then reply[9] = 1 end
  end
  notify_waiters.tell(expired)
  -- At least as many as came: jobs can expire faster than a queue forgets once a second.
  local came = #expired + (has_edges and #deps.dropped or 0)
  if came > 0 then retention.trim(retention.limits(), 3, came + 64) end
  by(tonumber(redis.call('ZRANGE', expiring, 0, 0, 'WITHSCORES')[2]))
end
last_claims.note(worker, seq, taken)
if book then
  if #given_up > 0 then finish.drained('reclaim') end
  event.write()
end

-- Wait.
local lease = redis.call('ZRANGE', active, 0, 0, 'WITHSCORES')
if lease[2] then
  local ends = tonumber(lease[2])
  if ends > now then by(ends) elseif now < calm_until then by(calm_until) else more = true end
end
timekeepers.forget()
local due_by = timekeepers.due_by(deadline)
if count > #taken then
  if not overdue and not more and till == now then redis.call('DEL', wake) end
  if arm >= 2 or (arm == 1 and #taken == 0) then
    reply[3] = timekeepers.arm(worker, due_by)
  end
end
if overdue or more then
  wakeup.push('-')
elseif timekeepers.lacks(due_by) then
  wakeup.push(worker)
end
reply[4] = deadline or 0
if till < now then
  -- Timekeepers, and the message in `wake`, are for callers that take what is due now.
  for _, at in pairs(heads) do
    local due_for_long = at + now - till
    if reply[4] == 0 or due_for_long < reply[4] then reply[4] = due_for_long end
  end
end
if more or more_unserved then reply[5] = 1 elseif held_back then reply[5] = 2 end
reply[6] = alone
if deadline and deadline == job_at then reply[11] = 1 end
return reply
