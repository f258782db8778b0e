-- enqueue_full: add jobs with constraints, each due at its time; an existing id changes nothing.
-- @rest  id when priority body constraints parents
-- @last  wanted     the durabilities that the caller waits for: replica | fsync | replica,fsync
-- @reply ok now, then per job: word due id    of the job; words: as `dedup` has them, and `open`
-- @reply cannot     the feature that the server lacks for the durability; nothing was added
-- @reply unknown    the id of a missing parent; nothing was added
-- @reply data       the id of a parent, if the queue is a delay queue; nothing was added
-- @reply busy       the data of earlier jobs with these ids is being removed: call again
-- @include constraints dedup_keys deps deps_edges deps_insert due_time insert new_jobs

-- open: it exists, and all that it waits for is not known yet (`dep_add`)
-- `enqueue` is the same for jobs without constraints, and quicker; those that come with jobs that
-- wait for them come this way, too. This, too, adds first.
local WIDTH = 6
if not new_jobs.valid(WIDTH) then
  return redis.error_reply('BADARG enqueue_full rest')
end
local rules, deduplicates = {}, false
local children, parents, known = {}, {}, {}
for i = rest, #ARGV, WIDTH do
  local line, waits_for = ARGV[i + 4], ARGV[i + 5]
  rules[i] = dedup_keys.rule(line)
  deduplicates = deduplicates or rules[i] ~= nil
  if (line ~= '' and not constraints.valid(line)) or not deps_insert.is_valid(waits_for)
    or (waits_for ~= '') ~= (constraints.value(line, 'd') ~= nil) then
    return redis.error_reply('BADARG enqueue_full rest')
  end
  if waits_for ~= '' then children[#children + 1] = ARGV[i] end
  deps_insert.add_local(waits_for, parents, known)
end
local refusal = wanted ~= '' and durability.refusal(wanted, 'enqueue_full')
if refusal then return refusal end

local set = redis.call('HMGET', meta, 'listened', 'limited')
if set[1] then event.open(set[1]) end
local states = deps.known(parents)
if #children > 0 then
  local here, is_data = {}, redis.call('HGET', meta, 'kind') == 'data'
  for i = rest, #ARGV, WIDTH do
    local exists
    for parent in string.gmatch(ARGV[i + 5], '%S+') do
      if not deps_edges.is_remote(parent) and (is_data or not (states[parent] or here[parent])) then
        if exists == nil then exists = redis.call('HEXISTS', jobs, ARGV[i]) == 1 end
        if not exists then return {is_data and 'data' or 'unknown', parent} end
      end
    end
    here[ARGV[i]] = not rules[i] -- which may become another job
  end
  if redis.call('HEXISTS', meta, 'edges') == 1 and deps_insert.is_busy(children, parents) then
    finish.close()
    return {'busy'}
  end
end

local is_new = new_jobs.store(WIDTH, rules)
local reply = {'ok', now}
local has_written = false

-- Adds one that waits for others; when it is due, or 0.
local function wait_for(i, waits_for)
  local id, stored = ARGV[i], ARGV[i + 4] .. ' w=' .. ARGV[i + 1] .. ' p=' .. ARGV[i + 2]
  redis.call('HSET', terms, id, stored)
  redis.call('ZADD', blocked, now, id)
  -- It comes to its group once it is freed.
  insert.has_groups = insert.has_groups or group.of(stored) ~= nil
  if book then event.add('added', 'enqueue', id, '-', 0, 0, '') end
  local word, cause = deps_insert.note(id, stored, waits_for, states)
  states[id] = 'live'
  if word == 'wait' then
    local at = deps_insert.look_at(stored, id, waits_for)
    if at then
      redis.call('ZADD', expiring, at, id)
      insert.by(math.max(at, now))
    end
    return 0
  end
  deps.apply(word, id, stored, cause)
  if redis.call('ZSCORE', cancelled, id) then states[id] = 'X' end
  return deps.due(id, stored)
end

for i = rest, #ARGV, WIDTH do
  local id, line, level = ARGV[i], ARGV[i + 4], 10 - tonumber(ARGV[i + 2])
  local word, at, holder = is_new[i] and 'created' or 'duplicate', due_time.us(ARGV[i + 1]), id
  if rules[i] then
    word, at, holder = dedup.call(rules[i],
      {id = id, at = at, level = level, body = ARGV[i + 3], line = line})
  elseif word == 'duplicate' then
    at = 0
    if not deps_edges.is_open(id) then word = 'open' end
  end
  if word == 'created' and ARGV[i + 5] ~= '' then
    at = wait_for(i, ARGV[i + 5])
  elseif word == 'created' then
    insert.add(id, line, level, at)
    states[id] = 'live'
    if book then event.add('added', 'enqueue', id, '-', 0, at, '') end
  end
  has_written = has_written or not (word == 'duplicate' or word == 'open' or word == 'rejected')
  reply[#reply + 1] = word
  reply[#reply + 1] = at
  reply[#reply + 1] = holder
end

if deduplicates then dedup.finish() end
insert.finish()
if has_written then
  redis.call('HSETNX', meta, 'terms', 1)
  if #children > 0 then redis.call('HSETNX', meta, 'edges', 1) end
end
-- As in `enqueue`: a repeat writes, too, also one that `dedup` remembers.
if wanted ~= '' and rest <= #ARGV then redis.call('HSET', meta, 'repeated', now) end
if #children > 0 then finish.close() elseif book then event.write() end
local at = insert.soonest(set[2])
if at then wakeup.due(at) end
return reply
