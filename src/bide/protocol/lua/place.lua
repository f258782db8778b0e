-- place: add jobs that have terms, each due at its own time; an id that exists changes nothing.
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
-- @key   folded     adds calls that were folded, removes some that nobody repeats any more
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
-- @reply ok now, then per job: word due id    of the job; words: as `fold` has them, and `open`
-- @reply cannot     what the server lacks for what is wanted; nothing was added
-- @reply unknown    the id of a parent that there is not, or not yet; nothing was added
-- @reply data       the id of a parent, where the queue is a delay queue's; nothing was added
-- @reply busy       what jobs of these names have left is being seen to: come again
-- @include clock when hint weigh arrive term
-- @later   sweep event durable record find expire hold fold group depend placing ended stand gate

-- open: it exists, and all that it waits for is not known yet (`link`)
-- `enqueue` is the same for jobs without terms, and quicker; those that come with jobs that wait
-- for them come this way, too. This, too, adds first.
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
if wanted ~= '' then
  if not durable.valid(wanted) then return redis.error_reply('BADARG place wanted') end
  local lack = durable.lacks(wanted)
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
local with = {now = now, book = book, event = event, record = record, when = when, term = term,
  group = group, find = find, expire = expire, hold = hold, weigh = weigh, sweep = sweep,
  touched = {}, dropped = {}}
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
local has_written = false
local s = stand.open(sets, with, stores)

-- Adds one that waits for others; when it is due, or 0.
local function wait_for(i, waits_for)
  local id, stored = ARGV[i], ARGV[i + 4] .. ' w=' .. ARGV[i + 1] .. ' p=' .. ARGV[i + 2]
  redis.call('HSET', terms, id, stored)
  redis.call('ZADD', blocked, now, id)
  s.has_groups = s.has_groups or group.of(stored) ~= nil -- it comes to its group once it is freed
  if book then event.add(book, 'added', 'enqueue', id, '-', 0, 0, '') end
  local word, cause = placing.note(sets, with, depend, id, stored, waits_for, states)
  states[id] = 'live'
  if word == 'wait' then
    local at = placing.look_at(depend, term, stored, edges, id, waits_for, now)
    if at then
      redis.call('ZADD', expiring, at, id)
      s.by(math.max(at, now))
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
    s.add(id, line, level, at)
    states[id] = 'live'
    if book then event.add(book, 'added', 'enqueue', id, '-', 0, at, '') end
  end
  has_written = has_written or not (word == 'exists' or word == 'open' or word == 'kept'
    or word == 'rejected')
  reply[#reply + 1] = word
  reply[#reply + 1] = at
  reply[#reply + 1] = holder
end

if folds then fold.finish(s, now) end
if s.has_groups then redis.call('HSETNX', meta, 'groups', 1) end
if next(with.touched) then s.due_by(group.turns(sets, with.touched, now)) end
if has_written then
  redis.call('HSETNX', meta, 'terms', 1)
  if #children > 0 then redis.call('HSETNX', meta, 'edges', 1) end
elseif wanted ~= '' and rest <= #ARGV then -- as in `enqueue`: a repeat writes, too
  redis.call('HSET', meta, 'repeated', now)
end
ended.tell(waiters, now, with.dropped)
if book then event.write(meta, events, book) end
s.by(with.earliest)
local at = s.soonest(set[2] and gate)
if at then hint.due(wake, keep, at, now) end
return reply
