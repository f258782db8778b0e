-- place: add jobs that have terms, each due at its own time; an id that exists changes nothing.
-- @key   meta       reads whether a trash is left, and whether someone listens; marks what there is
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
-- @key   folded     adds calls that were folded, removes some that nobody repeats any more
-- @key   active     looks
-- @key   completed  looks
-- @key   failed     looks
-- @key   cancelled  looks; adds what waits for what has not ended as it should
-- @key   run        looks, removes what a trashed namesake left; keeps the priority of what is cancelled
-- @key   notes      removes what a trashed namesake left
-- @key   wake       hints when a job, or an expiry, is the earliest
-- @key   keep       reads the earliest promise
-- @key   trash      removes namesakes
-- @key   waiters    tells and forgets those who wait for a job's end
-- @key   events     tells listeners
-- @rest  id when priority body terms parents
-- @last  wanted     what the caller will wait for behind this: replica | fsync | replica,fsync
-- @reply ok now, then per job: word due id    of the job; `fold` says which words there are, and `open`
-- @reply cannot     what the server lacks for what is wanted; nothing was added
-- @reply unknown    the id of a parent that there is not, or not yet; nothing was added
-- @reply data       the id of a parent, where the queue is a delay queue's; nothing was added
-- @reply busy       what jobs of these names have left is being seen to: come again
-- @include clock when hint sweep event weigh durable arrive term record find expire hold fold
-- @include group depend placing ended

-- open: it exists, and all that it waits for is not known yet (`link`)
-- `enqueue` is the same for jobs without terms, and quicker; those that come with jobs that wait for
-- them come this way, too. This, too, adds first.
local WIDTH = 6
if not arrive.valid(when, ARGV, rest, WIDTH) then return redis.error_reply('BADARG place rest') end
local rules, folds = {}, false
local children, parents, known = {}, {}, {}
for i = rest, #ARGV, WIDTH do
  local line, waits_for = ARGV[i + 4], ARGV[i + 5]
  rules[i] = hold.rule(line)
  folds = folds or rules[i] ~= nil
  if (line ~= '' and not term.valid(line)) or not placing.is_valid(waits_for)
    or (waits_for ~= '') ~= (term.value(line, 'd') ~= nil) then
    return redis.error_reply('BADARG place rest')
  end
  if waits_for ~= '' then children[#children + 1] = ARGV[i] end
  placing.add_local(depend, waits_for, parents, known)
end
if not durable.valid(wanted) then return redis.error_reply('BADARG place wanted') end
local lack = durable.lacks(wanted)
if lack then return {'cannot', lack} end

local now = clock.now(meta)
local book = event.book(meta, now)
local sets = {meta = meta, due = due, jobs = jobs, run = run, active = active,
  completed = completed, failed = failed, cancelled = cancelled, terms = terms,
  expiring = expiring, blocked = blocked, edges = edges,
  order = order, held = held, groups = groups, turns = turns}
local with = {now = now, book = book, event = event, record = record, when = when, term = term,
  group = group, touched = {}, dropped = {}}
local states = depend.known(sets, parents)
if #children > 0 then
  local here, is_data = {}, redis.call('HGET', meta, 'kind') == 'data'
  for i = rest, #ARGV, WIDTH do
    local exists
    for parent in string.gmatch(ARGV[i + 5], '%S+') do
      if not depend.is_remote(parent) and (is_data or not (states[parent] or here[parent])) then
        if exists == nil then exists = redis.call('HEXISTS', jobs, ARGV[i]) == 1 end
        if not exists then return {is_data and 'data' or 'unknown', parent} end
      end
    end
    here[ARGV[i]] = not rules[i] -- which may become another job
  end
  if redis.call('HEXISTS', meta, 'edges') == 1
    and placing.is_busy(sets, with, depend, children, parents) then
    ended.tell(waiters, now, with.dropped)
    if with.earliest then hint.due(wake, keep, with.earliest, now) end
    if book then event.write(meta, events, book) end
    return {'busy'}
  end
end

local stores = {run, notes, terms}
local is_new = arrive.store(meta, jobs, trash, stores, weigh, sweep, ARGV, rest, WIDTH, rules)
local reply = {'ok', now}
local touched, has_groups = with.touched, false
local earliest
local has_written = false
local function by(at)
  if at and (not earliest or at < earliest) then earliest = at end
end

local s = {meta = meta, due = due, jobs = jobs, terms = terms, expiring = expiring, unique = unique,
  folded = folded, active = active, cancelled = cancelled, run = run, GROUPED = group.GROUPED, find = find, record = record,
  expire = expire, hold = hold, term = term, weigh = weigh, held = {}, news = 0, notes = 0}
function s.is_trashed(id)
  return redis.call('HEXISTS', meta, 'trash') == 1 and sweep.take(trash, stores, {id})[id]
end

-- Where a job stands, with these terms: among those of its group, or alone.
local function put(id, line, level, at)
  local of = group.touch(sets, touched, line)
  if not of then
    redis.call('ZADD', due[level], at, id)
    return by(at)
  end
  has_groups = true
  group.join(of, line, level)
  group.put(sets, of, at, id)
end

function s.move(id, level, was, to_level, at, before, line)
  redis.call('ZREM', due[level], id)
  local of = level == group.GROUPED and group.touch(sets, touched, before)
  if of then group.drop(sets, of, was, id) end
  local soonest = earliest
  put(id, line, to_level, at)
  if at >= was then earliest = soonest end
  if book and at ~= was then event.add(book, 'rescheduled', 'fold', id, '-', 0, at, '') end
end
function s.begins(begins_by) by(begins_by and math.max(begins_by, now)) end

-- Adds one that waits for others; when it is due, or 0.
local function wait_for(i, waits_for)
  local id, stored = ARGV[i], ARGV[i + 4] .. ' w=' .. ARGV[i + 1] .. ' p=' .. ARGV[i + 2]
  redis.call('HSET', terms, id, stored)
  redis.call('ZADD', blocked, now, id)
  has_groups = has_groups or group.of(stored) ~= nil -- it comes to its group once it is freed
  if book then event.add(book, 'added', 'enqueue', id, '-', 0, 0, '') end
  local word, cause = placing.note(sets, with, depend, id, stored, waits_for, states)
  states[id] = 'live'
  if word == 'wait' then
    local at = placing.look_at(depend, term, stored, edges, id, waits_for, now)
    if at then
      redis.call('ZADD', expiring, at, id)
      by(math.max(at, now))
    end
    return 0
  end
  if word == 'cancel' then
    depend.drop(sets, with, id, stored, cause)
  elseif word == 'run' then
    depend.free(sets, with, id, stored)
  else
    depend.all_met(sets, with, id, stored)
  end
  if redis.call('ZSCORE', cancelled, id) then states[id] = 'X' end
  return depend.due(sets, with, id, stored)
end

-- Adds one that waits for nothing.
local function add(id, line, level, at)
  if line ~= '' then redis.call('HSET', terms, id, line) end
  local begins_by = term.begins_by(line, at)
  if begins_by then
    redis.call('ZADD', expiring, begins_by, id)
    by(math.max(begins_by, now))
  end
  put(id, line, level, at)
  states[id] = 'live'
  if book then event.add(book, 'added', 'enqueue', id, '-', 0, at, '') end
end

for i = rest, #ARGV, WIDTH do
  local id, line, level = ARGV[i], ARGV[i + 4], 10 - tonumber(ARGV[i + 2])
  local word, at, holder = is_new[i] and 'new' or 'exists', when.us(ARGV[i + 1], now), id
  if rules[i] then
    word, at, holder = fold.call(s, rules[i],
      {id = id, now = now, at = at, level = level, body = ARGV[i + 3], line = line})
  elseif word == 'exists' then
    at = 0
    if not depend.is_open(edges, id) then word = 'open' end
  end
  if word == 'new' and ARGV[i + 5] ~= '' then
    at = wait_for(i, ARGV[i + 5])
  elseif word == 'new' then
    add(id, line, level, at)
  end
  has_written = has_written or not (word == 'exists' or word == 'open' or word == 'kept'
    or word == 'rejected')
  reply[#reply + 1] = word
  reply[#reply + 1] = at
  reply[#reply + 1] = holder
end

if folds then fold.finish(s, now) end
if has_groups then redis.call('HSETNX', meta, 'groups', 1) end
depend.turns(sets, with)
if has_written then
  redis.call('HSETNX', meta, 'terms', 1)
  if #children > 0 then redis.call('HSETNX', meta, 'edges', 1) end
elseif wanted ~= '' and rest <= #ARGV then -- as in `enqueue`: a repeat writes, too
  redis.call('HSET', meta, 'repeated', now)
end
ended.tell(waiters, now, with.dropped)
if book then event.write(meta, events, book) end
by(with.earliest)
if earliest then hint.due(wake, keep, earliest, now) end
return reply
