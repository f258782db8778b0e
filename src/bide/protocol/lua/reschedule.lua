-- reschedule: give jobs that have not been taken another due time.
-- @key   meta       reads whether someone listens
-- @key   due        moves the due time
-- @key   run        notes since when a job waits for a worker with its task
-- @key   terms      reads whose groups they are, notes the due time of one that waits for others
-- @key   expiring   notes when one must begin now
-- @key   order      moves
-- @key   held       looks
-- @key   groups     reads and notes groups
-- @key   notes      adds from when to when
-- @key   turns      moves groups' markers
-- @key   blocked    looks
-- @key   active     looks
-- @key   completed  looks
-- @key   failed     looks
-- @key   cancelled  looks
-- @key   wake       hints when one is now the earliest
-- @key   keep       reads the earliest promise
-- @key   events     tells listeners
-- @arg   at         text     +N microseconds from now, or =N
-- @rest  id
-- @reply ok now, then per job: ok due | active 0 | completed 0 | failed 0 | cancelled 0 | gone 0
-- @include clock locate due_time wakeup event group constraints expire history
-- @later   run_record

if not due_time.valid(at) then return redis.error_reply('BADARG reschedule at') end
local now = clock.now(meta)
local us = due_time.us(at, now)
local sets = {due = due, expiring = expiring, terms = terms, order = order, held = held,
  groups = groups, turns = turns}
local reply, moved, changed, touched = {'ok', now}, false, {}, {}
local room = history.room()
for i = rest, #ARGV do
  local id = ARGV[i]
  local level, was = locate.due(due, id)
  if level then
    redis.call('ZREM', due[level], id)
    if level > locate.LEVELS then level = run_record.moved(run, id, level, math.max(us, now)) end
    redis.call('ZADD', due[level], us, id)
    expire.moved(sets, constraints, id, us)
    local grp = level == group.GROUPED and group.leave(sets, touched, was, id)
    if grp then group.put(sets, grp, us, id) end
    if was ~= us then
      history.move(room, notes, id, now, was, us)
      changed[#changed + 1] = id
    end
    moved = true
    reply[#reply + 1] = 'ok'
    reply[#reply + 1] = us
  elseif redis.call('ZSCORE', blocked, id) then
    local line = redis.call('HGET', terms, id) or 'd=-'
    redis.call('HSET', terms, id, (string.gsub(line, ' w=%S+', '')) .. ' w=' .. at)
    reply[#reply + 1] = 'ok'
    reply[#reply + 1] = us
  else
    reply[#reply + 1] = (locate.elsewhere(active, completed, failed, cancelled, id, blocked))
    reply[#reply + 1] = 0
  end
end
group.turns(sets, touched, now)
local book = #changed > 0 and event.book(meta, now)
if book then
  for i = 1, #changed do
    event.add(book, 'rescheduled', 'reschedule', changed[i], '-', 0, us, '')
  end
  event.write(meta, events, book)
end
if moved then wakeup.due(wake, keep, us, now) end
return reply
