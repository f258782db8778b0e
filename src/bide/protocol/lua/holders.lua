-- holders: list the workers that hold jobs of a queue, with the first of these jobs.
-- @arg   start   integer  how many jobs to pass over
-- @arg   count   integer  how many to look at, 1,000 at most
-- @arg   shown   integer  of how many jobs of each worker the body is read
-- @reply ok now next, then per worker: a list

-- next: the `start` of the call that continues; 0 where these are all
-- list: worker, how many it holds, when the last of its leases ends; then of the jobs that it has
-- held for longest: id since body (empty where there is none, or no room for it in the reply)
count = math.min(count, 1000)
local ids = redis.call('ZRANGE', active, start, start + count - 1)
local reply = {'ok', now, #ids == count and start + count or 0}
if #ids == 0 then return reply end

local lines = redis.call('HMGET', run, unpack(ids))
local found, workers = {}, {}
for i, id in ipairs(ids) do
  -- As `run_record` has them; to parse all of it takes four times as long.
  local since, name = string.match(lines[i] or '', '^%d %d+ %d+ %d+ [01] (%d+) (%S+)', 36)
  name = name or '?'
  local one = found[name]
  if not one then
    one = {held = 0, jobs = {}}
    found[name] = one
    workers[#workers + 1] = name
  end
  one.held = one.held + 1
  one.last = id -- they come in the order in which leases end
  -- The jobs that it has held for longest, in order: most of the others are looked at once.
  local held = one.jobs
  since = tonumber(since) or now
  local place = #held + 1
  while place > 1 and held[place - 1].since > since do place = place - 1 end
  if place <= shown then
    table.insert(held, place, {id = id, since = since})
    held[shown + 1] = nil
  end
end

local room = read_budget.room()
local is_large = redis.call('HGET', meta, 'large')
for _, name in ipairs(workers) do
  local one = found[name]
  local list, first = {name, one.held, tonumber(redis.call('ZSCORE', active, one.last))}, {}
  for i, job in ipairs(one.jobs) do first[i] = job.id end
  if is_large then read_budget.cut(room, jobs, first) end
  local bodies = #first > 0 and redis.call('HMGET', jobs, unpack(first)) or {}
  for i, job in ipairs(one.jobs) do
    local n = #list
    list[n + 1], list[n + 2], list[n + 3] = job.id, job.since, bodies[i] or ''
  end
  reply[#reply + 1] = list
end
return reply
