-- place: add jobs that have terms, each due at its own time; an id that exists changes nothing.
-- @key   meta       reads whether a trash is left, and whether someone listens; marks what there is
-- @key   due        adds
-- @key   jobs       adds the bodies
-- @key   terms      adds
-- @key   expiring   adds those that must begin by a time, or are to be looked at while they wait
-- @key   blocked    adds those that wait for others
-- @key   edges      adds what they wait for
-- @key   active     looks
-- @key   completed  looks
-- @key   failed     looks
-- @key   cancelled  looks; adds what waits for what has not ended as it should
-- @key   run        removes what a trashed namesake left; keeps the priority of what is cancelled
-- @key   notes      removes what a trashed namesake left
-- @key   wake       hints when a job, or an expiry, is the earliest
-- @key   keep       reads the earliest promise
-- @key   trash      removes namesakes
-- @key   waiters    tells and forgets those who wait for a job's end
-- @key   events     tells listeners
-- @rest  id when priority body terms parents
-- @last  wanted     what the caller will wait for behind this: replica | fsync | replica,fsync
-- @reply ok now, then per job: new due | exists 0 | open 0
-- @reply cannot     what the server lacks for what is wanted; nothing was added
-- @reply unknown    the id of a parent that there is not; nothing was added
-- @reply busy       what jobs of these names have left is being seen to: come again
-- @include clock when hint sweep event weigh durable arrive term record depend placing ended

-- open: it exists, and all that it waits for is not known yet (`link`)
-- `enqueue` is the same for jobs without terms, and quicker; those that come with jobs that wait for
-- them come this way, too. This, too, adds first.
local WIDTH = 6
if not arrive.valid(when, ARGV, rest, WIDTH) then return redis.error_reply('BADARG place rest') end
local children, parents, known = {}, {}, {}
for i = rest, #ARGV, WIDTH do
  local line, waits_for = ARGV[i + 4], ARGV[i + 5]
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
  expiring = expiring, blocked = blocked, edges = edges}
local with = {now = now, book = book, event = event, record = record, when = when, term = term,
  dropped = {}}
local states = depend.states(sets, parents)
if #children > 0 then
  local here = {}
  for i = rest, #ARGV, WIDTH do
    local exists
    for parent in string.gmatch(ARGV[i + 5], '%S+') do
      if not depend.is_remote(parent) and not states[parent] and not here[parent] then
        if exists == nil then exists = redis.call('HEXISTS', jobs, ARGV[i]) == 1 end
        if not exists then return {'unknown', parent} end
      end
    end
    here[ARGV[i]] = true
  end
  if redis.call('HEXISTS', meta, 'edges') == 1
    and placing.is_busy(sets, with, depend, children, parents) then
    ended.tell(waiters, now, with.dropped)
    if with.earliest then hint.due(wake, keep, with.earliest, now) end
    if book then event.write(meta, events, book) end
    return {'busy'}
  end
end

local is_new = arrive.store(meta, jobs, trash, {run, notes, terms}, weigh, sweep, ARGV, rest, WIDTH)
local reply, has_new = {'ok', now}, false
local earliest
local function by(at)
  if at and (not earliest or at < earliest) then earliest = at end
end

-- Adds one that waits for others; when it is due, or 0.
local function wait_for(i, waits_for)
  local id, stored = ARGV[i], ARGV[i + 4] .. ' w=' .. ARGV[i + 1] .. ' p=' .. ARGV[i + 2]
  redis.call('HSET', terms, id, stored)
  redis.call('ZADD', blocked, now, id)
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
  return depend.due(due, term, stored, id)
end

for i = rest, #ARGV, WIDTH do
  local id, line = ARGV[i], ARGV[i + 4]
  has_new = has_new or is_new[i]
  if is_new[i] and ARGV[i + 5] ~= '' then
    reply[#reply + 1] = 'new'
    reply[#reply + 1] = wait_for(i, ARGV[i + 5])
  elseif is_new[i] then
    local at = when.us(ARGV[i + 1], now)
    if line ~= '' then redis.call('HSET', terms, id, line) end
    local begins_by = term.begins_by(line, at)
    if begins_by then
      redis.call('ZADD', expiring, begins_by, id)
      by(math.max(begins_by, now))
    end
    redis.call('ZADD', due[10 - tonumber(ARGV[i + 2])], at, id)
    states[id] = 'live'
    by(at)
    if book then event.add(book, 'added', 'enqueue', id, '-', 0, at, '') end
    reply[#reply + 1] = 'new'
    reply[#reply + 1] = at
  else
    reply[#reply + 1] = depend.is_open(edges, id) and 'exists' or 'open'
    reply[#reply + 1] = 0
  end
end

if has_new then
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
