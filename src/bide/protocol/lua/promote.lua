-- promote: make delayed jobs due now, and blocked ones; one that waits keeps its place.
-- @key   meta       reads whether someone listens
-- @key   due        moves the due time
-- @key   run        reads the level of a job that waits for a worker with its task
-- @key   terms      reads whose groups they are, and the priority; notes that one is due now
-- @key   order      moves
-- @key   held       looks
-- @key   groups     reads and notes groups
-- @key   notes      adds from when to when
-- @key   turns      moves groups' markers
-- @key   blocked    removes
-- @key   edges      forgets what they wait for
-- @key   expiring   notes when one must begin now
-- @key   active     looks
-- @key   completed  looks
-- @key   failed     looks
-- @key   cancelled  looks
-- @key   wake       hints
-- @key   keep       reads the earliest promise
-- @key   events     tells listeners
-- @rest  id
-- @reply ok now, then per job: ok due | active 0 | completed 0 | failed 0 | cancelled 0 | gone 0
-- @include clock find hint event when term group depend expire noting
-- @later   record

local now = clock.now(meta)
local sets = {due = due, blocked = blocked, expiring = expiring, terms = terms, order = order,
  held = held, groups = groups, turns = turns}
local reply, moved, touched = {'ok', now}, {}, {}
local room = noting.room()
for i = rest, #ARGV do
  local id = ARGV[i]
  local level, at = find.due(due, id)
  local word = 'ok'
  if not level and redis.call('ZSCORE', blocked, id) then
    local line = redis.call('HGET', terms, id) or 'd=-'
    line = string.gsub(line, ' w=%S+', '') .. ' w=+0'
    redis.call('HSET', terms, id, line)
    local with = {now = now, when = when, term = term, group = group, touched = touched}
    depend.free(sets, with, id, line)
    depend.forget(edges, id)
    at = now
    moved[#moved + 1] = id
  elseif not level then
    word, at = (find.elsewhere(active, completed, failed, cancelled, id, blocked)), 0
  elseif at > now then
    redis.call('ZREM', due[level], id)
    if level > find.LEVELS then level = record.moved(run, id, level) end
    redis.call('ZADD', due[level], now, id)
    expire.moved(sets, term, id, now)
    local of = level == group.GROUPED and group.leave(sets, touched, at, id)
    if of then group.put(sets, of, now, id) end
    noting.move(room, notes, id, now, at, now)
    at = now
    moved[#moved + 1] = id
  end
  reply[#reply + 1] = word
  reply[#reply + 1] = at
end
if #moved == 0 then return reply end
group.turns(sets, touched, now)
local book = event.book(meta, now)
if book then
  for i = 1, #moved do
    event.add(book, 'rescheduled', 'promote', moved[i], '-', 0, now, '')
  end
  event.write(meta, events, book)
end
hint.due(wake, keep, now, now)
return reply
