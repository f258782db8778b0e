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
-- @include clock locate wakeup event due_time constraints group deps expire history
-- @later   run_record

local now = clock.now(meta)
local sets = {due = due, blocked = blocked, expiring = expiring, terms = terms, order = order,
  held = held, groups = groups, turns = turns}
local reply, moved, touched = {'ok', now}, {}, {}
local room = history.room()
for i = rest, #ARGV do
  local id = ARGV[i]
  local level, at = locate.due(due, id)
  local word = 'ok'
  if not level and redis.call('ZSCORE', blocked, id) then
    local line = redis.call('HGET', terms, id) or 'd=-'
    line = string.gsub(line, ' w=%S+', '') .. ' w=+0'
    redis.call('HSET', terms, id, line)
    local ctx = {now = now, due_time = due_time, constraints = constraints, group = group,
      touched = touched}
    deps.free(sets, ctx, id, line)
    deps.forget(edges, id)
    at = now
    moved[#moved + 1] = id
  elseif not level then
    word, at = (locate.elsewhere(active, completed, failed, cancelled, id, blocked)), 0
  elseif at > now then
    redis.call('ZREM', due[level], id)
    if level > locate.LEVELS then level = run_record.moved(run, id, level) end
    redis.call('ZADD', due[level], now, id)
    expire.moved(sets, constraints, id, now)
    local grp = level == group.GROUPED and group.leave(sets, touched, at, id)
    if grp then group.put(sets, grp, now, id) end
    history.move(room, notes, id, now, at, now)
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
wakeup.due(wake, keep, now, now)
return reply
