-- retry: run finished jobs again, with all their attempts.
-- @arg   name       text     of this call; its repeat carries the same, and runs nothing twice
-- @arg   at         text     +N microseconds from now, or =N
-- @arg   states     text     of the jobs that run again, of those of jobs that have ended
-- @rest  id
-- @reply ok now, then per job: ok due | its state 0 | gone 0
-- @include due_time event group locate record_store retention run_record wakeup

if not due_time.valid(at) then return redis.error_reply('BADARG retry at') end
if not string.find(name, '^%w+$') then return redis.error_reply('BADARG retry name') end
local us = due_time.us(at)
local reply, moved = {'ok', now}, {}

local function revive(id, rec)
  local level = 5
  if rec then
    rec.attempt, rec.crashes, rec.strikes, rec.alone, rec.first, rec.retried = 0, 0, 0, 0, nil, name
    rec.missing = nil
    level = 10 - rec.priority
    record_store.write(id, rec)
  end
  retention.uncount({id})
  redis.call('HDEL', results, id)
  local line = redis.call('HGET', terms, id)
  if line then
    line = string.gsub(string.gsub(line, ' e=%d+', ''), ' c=%S+', '')
    redis.call('HSET', terms, id, line)
    dedup_keys.leave(id, line)
  end
  local grp = line and group.touch(line, 10 - level)
  if grp then group.put(grp, us, id) else redis.call('ZADD', due[level], us, id) end
  moved[#moved + 1] = id
end

for i = rest, #ARGV do
  local id = ARGV[i]
  local word, at_us = 'ok', us
  local line = redis.call('HGET', run, id)
  local rec
  if line then rec = run_record.parse(line) else rec = run_record.unclaimed(5) end
  local is_repeat = rec and rec.retried == name -- whatever has become of the job since
  local may_run = not is_repeat and redis.call('HEXISTS', jobs, id) == 1
  if may_run and locate.take_ended(id, states) then
    revive(id, rec)
  else
    local state, since, level = locate.state(id)
    if not is_repeat then word = state end
    at_us = is_repeat and level and since or 0
  end
  reply[#reply + 1] = word
  reply[#reply + 1] = at_us
end
if #moved == 0 then return reply end
group.turns()
event.tell('retried', 'revive', moved, us)
wakeup.due(us)
return reply
