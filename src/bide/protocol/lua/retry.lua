-- retry: run jobs that have ended once more, with all their attempts before them.
-- @key   meta       reads whether someone listens, counts the bytes of results
-- @key   due        adds
-- @key   jobs       looks
-- @key   run        counts from the beginning; the tokens go on growing
-- @key   results    removes
-- @key   terms      forgets why it was cancelled, reads whose groups they are
-- @key   order      adds
-- @key   held       looks
-- @key   groups     reads and notes groups
-- @key   turns      moves groups' markers
-- @key   active     looks
-- @key   blocked    looks
-- @key   completed  removes
-- @key   failed     removes
-- @key   cancelled  removes
-- @key   wake       hints when one is now the earliest
-- @key   keep       reads the earliest promise
-- @key   events     tells listeners
-- @arg   name       text     of this call; its repeat carries the same, and runs nothing twice
-- @arg   at         text     +N microseconds from now, or =N
-- @rest  id
-- @reply ok now, then per job: ok due | active 0 | delayed 0 | waiting 0 | blocked 0 | gone 0
-- @include clock locate due_time run_record wakeup event group
-- @later   retention

if not due_time.valid(at) then return redis.error_reply('BADARG retry at') end
if not string.find(name, '^%w+$') then return redis.error_reply('BADARG retry name') end
local now = clock.now(meta)
local us = due_time.us(at, now)
local sets = {due = due, terms = terms, order = order, held = held, groups = groups, turns = turns}
local reply, moved, touched = {'ok', now}, {}, {}

local function revive(id, rec)
  local level = 5
  if rec then
    rec.attempt, rec.crashes, rec.strikes, rec.alone, rec.first, rec.retried = 0, 0, 0, 0, nil, name
    rec.missing = nil
    level = 10 - rec.priority
    redis.call('HSET', run, id, run_record.format(rec.head, rec))
  end
  retention.uncount(meta, results, {id})
  redis.call('HDEL', results, id)
  local line = redis.call('HGET', terms, id)
  if line then
    line = string.gsub(string.gsub(line, ' e=%d+', ''), ' c=%S+', '')
    redis.call('HSET', terms, id, line)
  end
  local grp = line and group.touch(sets, touched, line, 10 - level)
  if grp then group.put(sets, grp, us, id) else redis.call('ZADD', due[level], us, id) end
  moved[#moved + 1] = id
end

for i = rest, #ARGV do
  local id = ARGV[i]
  local word, at_us = 'ok', us
  local line = redis.call('HGET', run, id)
  local rec
  if line then rec = run_record.parse(line) else rec = run_record.unclaimed(5, now) end
  local is_repeat = rec and rec.retried == name -- whatever has become of the job since
  if not is_repeat and redis.call('HEXISTS', jobs, id) == 1 and (redis.call('ZREM', failed, id) == 1
    or redis.call('ZREM', completed, id) == 1 or redis.call('ZREM', cancelled, id) == 1) then
    revive(id, rec)
  else
    local _, score = locate.due(due, id)
    at_us = is_repeat and score or 0
    if is_repeat then
      word = 'ok'
    elseif score then
      word = score > now and 'delayed' or 'waiting'
    else
      word = (locate.elsewhere(active, completed, failed, cancelled, id, blocked))
    end
  end
  reply[#reply + 1] = word
  reply[#reply + 1] = at_us
end
if #moved == 0 then return reply end
group.turns(sets, touched, now)
local book = event.book(meta, now)
if book then
  for i = 1, #moved do event.add(book, 'retried', 'revive', moved[i], '-', 0, us, '') end
  event.write(meta, events, book)
end
wakeup.due(wake, keep, us, now)
return reply
