-- place: add jobs that have terms, each due at its own time; an id that exists changes nothing.
-- @key   meta      reads whether a trash is left, and whether someone listens; marks what there is
-- @key   due       adds, and moves what calls fold into
-- @key   jobs      adds the bodies, replaces them, appends what is gathered
-- @key   terms     adds
-- @key   expiring  adds those that must begin by a time
-- @key   order     adds jobs of groups
-- @key   held      looks
-- @key   groups    reads and notes groups
-- @key   turns     moves groups' markers
-- @key   run       removes what a trashed namesake left
-- @key   unique    adds who holds a key, removes some who hold none any more
-- @key   folded    adds calls that were folded, removes some that nobody repeats any more
-- @key   active    looks
-- @key   cancelled looks
-- @key   run       looks, removes what a trashed namesake left
-- @key   notes     removes what a trashed namesake left
-- @key   wake      hints when a job, or an expiry, is the earliest
-- @key   keep      reads the earliest promise
-- @key   trash     removes namesakes
-- @key   events    tells listeners
-- @rest  id when priority body terms
-- @last  wanted    what the caller will wait for behind this: replica | fsync | replica,fsync
-- @reply ok now, then per job: word due id    of the job; `fold` says which words there are
-- @reply cannot    what the server lacks for what is wanted; nothing was added
-- @include clock when hint sweep event weigh durable arrive term record find expire hold fold
-- @include group

-- `enqueue` is the same for jobs without terms, and quicker. This, too, adds first.
if not arrive.valid(when, ARGV, rest, 5) then return redis.error_reply('BADARG place rest') end
local rules, folds = {}, false
for i = rest, #ARGV, 5 do
  local line = ARGV[i + 4]
  if not term.valid(line) then return redis.error_reply('BADARG place rest') end
  rules[i] = hold.rule(line)
  folds = folds or rules[i] ~= nil
end
if not durable.valid(wanted) then return redis.error_reply('BADARG place wanted') end
local lack = durable.lacks(wanted)
if lack then return {'cannot', lack} end

local now = clock.now(meta)
local stores = {run, notes, terms}
local is_new = arrive.store(meta, jobs, trash, stores, weigh, sweep, ARGV, rest, 5, rules)
local book = event.book(meta, now)
local reply = {'ok', now}
local sets = {due = due, order = order, held = held, groups = groups, turns = turns}
local touched, has_groups = {}, false
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
  has_groups = true -- what its latest job says of a group, holds
  if level <= 10 then of.priority = 10 - level end
  of.asked = tonumber(string.match(' ' .. line, ' n=(%d+)')) or of.asked
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

for i = rest, #ARGV, 5 do
  local id, line, level = ARGV[i], ARGV[i + 4], 10 - tonumber(ARGV[i + 2])
  local word, at, holder = is_new[i] and 'new' or 'exists', when.us(ARGV[i + 1], now), id
  if rules[i] then
    word, at, holder = fold.call(s, rules[i],
      {id = id, now = now, at = at, level = level, body = ARGV[i + 3], line = line})
  elseif word == 'exists' then
    at = 0
  end
  if word == 'new' then
    redis.call('HSET', terms, id, line)
    local begins_by = term.begins_by(line, at)
    if begins_by then
      redis.call('ZADD', expiring, begins_by, id)
      by(math.max(begins_by, now))
    end
    put(id, line, level, at)
    if book then event.add(book, 'added', 'enqueue', id, '-', 0, at, '') end
  end
  has_written = has_written or not (word == 'exists' or word == 'kept' or word == 'rejected')
  reply[#reply + 1] = word
  reply[#reply + 1] = at
  reply[#reply + 1] = holder
end

if folds then fold.finish(s, now) end
if has_groups then
  redis.call('HSETNX', meta, 'groups', 1)
  by(group.turns(sets, touched, now))
end
if has_written then
  redis.call('HSETNX', meta, 'terms', 1)
elseif wanted ~= '' and rest <= #ARGV then -- as in `enqueue`: a repeat writes, too
  redis.call('HSET', meta, 'repeated', now)
end
if book then event.write(meta, events, book) end
if earliest then hint.due(wake, keep, earliest, now) end
return reply
