-- enqueue: add jobs, each due at its own time; an id that exists changes nothing.
-- @key   meta jobs wake keep events due run notes terms trash
-- @rest  id when priority body
-- @last  wanted  the durabilities that the caller waits for: replica | fsync | replica,fsync
-- @reply ok now, then per job: when it is due, or 0 if its id exists
-- @reply keys      there is a trash, so all keys are needed; nothing was added
-- @reply cannot    the feature that the server lacks for the durability; nothing was added
-- @include due_time wakeup read_budget new_jobs

-- Where all jobs go to one due set, that may be the call's last key: those behind it are for what a
-- trashed namesake left. Adds first, so that a full server refuses the whole call.
if not new_jobs.valid(4) then
  return redis.error_reply('BADARG enqueue rest')
end
local refusal = wanted ~= '' and durability.refusal(wanted, 'enqueue')
if refusal then return refusal end

local set = redis.call('HMGET', meta, 'listened', 'limited', 'trash')
local one = not due[2] and due[1]
if one and set[3] then return {'keys'} end
local is_new = new_jobs.store(4)
if set[1] then event.open(set[1]) end
local reply = {'ok', now}
local earliest
local adds = {}
-- Of the job before; the score as text, once two are due alike: see `due_time`.
local asked, us, score
for i = rest, #ARGV, 4 do
  local at = 0
  if is_new[i] then
    if ARGV[i + 1] ~= asked then
      asked = ARGV[i + 1]
      us, score = due_time.us(asked)
    elseif score == us then
      score = string.format('%.0f', us)
    end
    at = us
    local set = one or due[10 - ARGV[i + 2]]
    local add = adds[set]
    if not add then
      add = {}
      adds[set] = add
    end
    local n = #add
    add[n + 1] = score
    add[n + 2] = ARGV[i]
    if not earliest or at < earliest then earliest = at end
    if book then event.add('added', 'enqueue', ARGV[i], '-', 0, at, '') end
  end
  reply[#reply + 1] = at
end

-- A repeat that finds its ids writes, too: WAIT counts what its own connection has written.
if not earliest and wanted ~= '' and rest <= #ARGV then
  redis.call('HSET', meta, 'repeated', now)
end
for set, add in pairs(adds) do
  redis.call('ZADD', set, unpack(add))
end
if book then event.write() end
if earliest and set[2] then earliest = rate_limit.earliest(earliest) end
if earliest then wakeup.due(earliest) end
return reply
