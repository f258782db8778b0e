-- enqueue_full: add jobs with terms, each due at its own time; an id that exists changes nothing.
-- @key   meta       reads whether a trash is left, who listens, and the limits; marks what there is
-- @key   due        adds, and moves what calls fold into
-- @key   jobs       adds the bodies, replaces them, appends what is gathered
-- @key   terms      adds
-- @key   expiring   adds those that must begin by a time, or are to be looked at while they wait
-- @key   order      adds jobs of groups
-- @key   held       looks
-- @key   groups     reads and notes groups
-- @key   turns      moves groups' markers
-- @key   blocked    adds those that wait for others
-- @key   edges      adds what they wait for
-- @key   unique     adds who holds a key, removes some who hold none any more
-- @key   folded     adds calls that were folded, removes some that are too old to repeat
-- @key   active     looks
-- @key   completed  looks
-- @key   failed     looks
-- @key   cancelled  looks; adds what waits for what has not ended as it should
-- @key   run        looks, removes what a trashed namesake left; notes priorities of the cancelled
-- @key   notes      removes what a trashed namesake left
-- @key   wake       hints when a job, or an expiry, is the earliest
-- @key   keep       reads the earliest promise
-- @key   trash      removes namesakes
-- @key   waiters    tells and forgets those who wait for a job's end
-- @key   events     tells listeners
-- @rest  id when priority body terms parents
-- @last  wanted     what the caller will wait for behind this: replica | fsync | replica,fsync
-- @reply ok now, then per job: word due id    of the job; words: as `dedup` has them, and `open`
-- @reply cannot     what the server lacks for what is wanted; nothing was added
-- @reply unknown    the id of a parent that there is not, or not yet; nothing was added
-- @reply data       the id of a parent, where the queue is a delay queue's; nothing was added
-- @reply busy       what jobs of these names have left is being seen to: come again
-- @include clock due_time wakeup read_budget new_jobs constraints
-- @later   trash_sweep event durability run_record locate expire dedup_keys dedup group deps
-- @later   deps_insert notify_waiters insert rate_limit

-- open: it exists, and all that it waits for is not known yet (`dep_add`)
-- `enqueue` is the same for jobs without terms, and quicker; those that come with jobs that wait
-- for them come this way, too. This, too, adds first.
local WIDTH = 6
if not new_jobs.valid(due_time, ARGV, rest, WIDTH) then
  return redis.error_reply('BADARG enqueue_full rest')
end
local rules, folds = {}, false
local children, parents, known = {}, {}, {}
for i = rest, #ARGV, WIDTH do
  local line, waits_for = ARGV[i + 4], ARGV[i + 5]
  rules[i] = dedup_keys.rule(line)
  folds = folds or rules[i] ~= nil
  if (line ~= '' and not constraints.valid(line)) or not deps_insert.is_valid(waits_for)
    or (waits_for ~= '') ~= (constraints.value(line, 'd') ~= nil) then
    return redis.error_reply('BADARG enqueue_full rest')
  end
  if waits_for ~= '' then children[#children + 1] = ARGV[i] end
  deps_insert.add_local(deps, waits_for, parents, known)
end
if wanted ~= '' then
  if not durability.valid(wanted) then return redis.error_reply('BADARG enqueue_full wanted') end
  local lack = durability.lacks(wanted)
  if lack then return {'cannot', lack} end
end

local now = clock.now(meta)
local set = redis.call('HMGET', meta, 'listened', 'limited')
local book = set[1] and event.open(set[1], now)
local sets = {meta = meta, due = due, jobs = jobs, run = run, active = active,
  completed = completed, failed = failed, cancelled = cancelled, terms = terms,
  expiring = expiring, blocked = blocked, edges = edges,
  order = order, held = held, groups = groups, turns = turns, unique = unique, folded = folded,
  trash = trash}
local ctx = {now = now, book = book, event = event, run_record = run_record,
  due_time = due_time, constraints = constraints, group = group,
  locate = locate, expire = expire, dedup_keys = dedup_keys, read_budget = read_budget,
  trash_sweep = trash_sweep, touched = {}, dropped = {}}
local states = deps.known(sets, parents)
if #children > 0 then
  local here, is_data = {}, redis.call('HGET', meta, 'kind') == 'data'
  for i = rest, #ARGV, WIDTH do
    local exists
    for parent in string.gmatch(ARGV[i + 5], '%S+') do
      if not deps.is_remote(parent) and (is_data or not (states[parent] or here[parent])) then
        if exists == nil then exists = redis.call('HEXISTS', jobs, ARGV[i]) == 1 end
        if not exists then return {is_data and 'data' or 'unknown', parent} end
      end
    end
    here[ARGV[i]] = not rules[i] -- which may become another job
  end
  if redis.call('HEXISTS', meta, 'edges') == 1
    and deps_insert.is_busy(sets, ctx, deps, children, parents) then
    notify_waiters.tell(waiters, now, ctx.dropped)
    if ctx.earliest then wakeup.due(wake, keep, ctx.earliest, now) end
    if book then event.write(meta, events, book) end
    return {'busy'}
  end
end

local stores = {run, notes, terms}
local is_new = new_jobs.store(meta, jobs, trash, stores, read_budget, trash_sweep, ARGV, rest,
  WIDTH, rules)
local reply = {'ok', now}
local has_written = false
local inserter = insert.open(sets, ctx, stores)

-- Adds one that waits for others; when it is due, or 0.
local function wait_for(i, waits_for)
  local id, stored = ARGV[i], ARGV[i + 4] .. ' w=' .. ARGV[i + 1] .. ' p=' .. ARGV[i + 2]
  redis.call('HSET', terms, id, stored)
  redis.call('ZADD', blocked, now, id)
  -- It comes to its group once it is freed.
  inserter.has_groups = inserter.has_groups or group.of(stored) ~= nil
  if book then event.add(book, 'added', 'enqueue', id, '-', 0, 0, '') end
  local word, cause = deps_insert.note(sets, ctx, deps, id, stored, waits_for, states)
  states[id] = 'live'
  if word == 'wait' then
    local at = deps_insert.look_at(deps, constraints, stored, edges, id, waits_for, now)
    if at then
      redis.call('ZADD', expiring, at, id)
      inserter.by(math.max(at, now))
    end
    return 0
  end
  if word == 'cancel' then
    deps.drop(sets, ctx, id, stored, cause)
  elseif word == 'run' then
    deps.free(sets, ctx, id, stored)
  else
    deps.all_met(sets, ctx, id, stored)
  end
  if redis.call('ZSCORE', cancelled, id) then states[id] = 'X' end
  return deps.due(sets, ctx, id, stored)
end

for i = rest, #ARGV, WIDTH do
  local id, line, level = ARGV[i], ARGV[i + 4], 10 - tonumber(ARGV[i + 2])
  local word, at, holder = is_new[i] and 'created' or 'duplicate', due_time.us(ARGV[i + 1], now), id
  if rules[i] then
    word, at, holder = dedup.call(inserter, rules[i],
      {id = id, now = now, at = at, level = level, body = ARGV[i + 3], line = line})
  elseif word == 'duplicate' then
    at = 0
    if not deps.is_open(edges, id) then word = 'open' end
  end
  if word == 'created' and ARGV[i + 5] ~= '' then
    at = wait_for(i, ARGV[i + 5])
  elseif word == 'created' then
    inserter.add(id, line, level, at)
    states[id] = 'live'
    if book then event.add(book, 'added', 'enqueue', id, '-', 0, at, '') end
  end
  has_written = has_written or not (word == 'duplicate' or word == 'open' or word == 'rejected')
  reply[#reply + 1] = word
  reply[#reply + 1] = at
  reply[#reply + 1] = holder
end

if folds then dedup.finish(inserter, now) end
if inserter.has_groups then redis.call('HSETNX', meta, 'groups', 1) end
if next(ctx.touched) then inserter.due_by(group.turns(sets, ctx.touched, now)) end
if has_written then
  redis.call('HSETNX', meta, 'terms', 1)
  if #children > 0 then redis.call('HSETNX', meta, 'edges', 1) end
elseif wanted ~= '' and rest <= #ARGV then -- as in `enqueue`: a repeat writes, too
  redis.call('HSET', meta, 'repeated', now)
end
notify_waiters.tell(waiters, now, ctx.dropped)
if book then event.write(meta, events, book) end
inserter.by(ctx.earliest)
local at = inserter.soonest(set[2] and rate_limit)
if at then wakeup.due(wake, keep, at, now) end
return reply
