-- settle: say how claimed jobs ended; refused where the token is no longer the job's.
-- @key   meta       counts
-- @key   due        adds what is to run again
-- @key   jobs       trims
-- @key   run        remembers token and outcome
-- @key   results    adds results that are not None, trims
-- @key   errors     adds errors, trims
-- @key   active     removes
-- @key   completed  adds, trims
-- @key   failed     adds, trims
-- @key   wake       hints when a job is to run again before any promise
-- @key   keep       reads the earliest promise
-- @arg   completed_count   integer  how many completed jobs are kept
-- @arg   completed_age_us  integer  how long
-- @arg   failed_count      integer  how many failed jobs are kept
-- @arg   failed_age_us     integer  how long
-- @rest  id token outcome when data
-- @reply ok now, then per job: ok | lost | gone
-- @include clock when record hint retain

-- outcome: complete (data: result) | retry (when, data: error) | fail (data: error)
--        | snooze (when; uses no attempt) | release (given back unbegun; uses no attempt)
local STAMP = {complete = 'C', retry = 'R', fail = 'F', snooze = 'S', release = 'L'}

local ids, n = {}, 0
for i = rest, #ARGV, 5 do
  local outcome = ARGV[i + 2]
  if not STAMP[outcome] or #ARGV[i + 1] ~= 16
    or ((outcome == 'retry' or outcome == 'snooze') and not when.valid(ARGV[i + 3])) then
    return redis.error_reply('BADARG settle rest')
  end
  n = n + 1
  ids[n] = ARGV[i]
end
if n == 0 then return redis.error_reply('BADARG settle rest') end

local now = clock.now(meta)
local lines = redis.call('HMGET', run, unpack(ids))
local leases = redis.call('ZMSCORE', active, unpack(ids))
local reply = {'ok', now}
local gone_active, records, results_add, errors_add = {}, {}, {}, {}
local completed_add, failed_add, due_add = {}, {}, {}
local settled = {}
local earliest
local counts = {complete = 0, retry = 0, fail = 0, snooze = 0, release = 0}

local function again(f, at)
  local set = due[f.strikes >= 2 and 11 or 10 - f.priority]
  local add = due_add[set]
  if not add then
    add = {}
    due_add[set] = add
  end
  add[#add + 1] = at
  add[#add + 1] = f.id
  if not earliest or at < earliest then earliest = at end
end

local function apply(id, line, outcome, at, data)
  local stamp = STAMP[outcome]
  gone_active[#gone_active + 1] = id
  counts[outcome] = counts[outcome] + 1
  line = record.settled(line, stamp)
  if outcome == 'complete' then
    completed_add[#completed_add + 1] = now
    completed_add[#completed_add + 1] = id
    if data ~= '' then
      results_add[#results_add + 1] = id
      results_add[#results_add + 1] = data
    end
  elseif outcome == 'fail' then
    failed_add[#failed_add + 1] = now
    failed_add[#failed_add + 1] = id
  else
    local f = record.parse(line) or record.unknown(string.sub(line, 1, 34), now)
    f.id = id
    f.alone = 0
    if outcome ~= 'retry' then f.attempt = f.attempt - 1 end
    if outcome ~= 'release' then f.strikes, f.crashes = 0, 0 end
    again(f, outcome == 'release' and math.min(f.due, now) or when.us(at, now))
    line = record.format(f.head, f)
  end
  if data ~= '' and (outcome == 'fail' or outcome == 'retry') then
    errors_add[#errors_add + 1] = id
    errors_add[#errors_add + 1] = data
  end
  records[#records + 1] = id
  records[#records + 1] = line
end

for k = 1, n do
  local i = rest + (k - 1) * 5
  local id, token, outcome, line = ids[k], ARGV[i + 1], ARGV[i + 2], lines[k]
  local word = 'lost'
  if not line then
    word = 'gone'
  elseif settled[id] == token .. outcome or record.remembers(line, token, STAMP[outcome]) then
    word = 'ok'
  elseif not settled[id] and leases[k] and record.stamp(line) == token .. '-' then
    settled[id] = token .. outcome
    apply(id, line, outcome, ARGV[i + 3], ARGV[i + 4])
    word = 'ok'
  end
  reply[k + 2] = word
end
if #gone_active == 0 then return reply end

-- Removes first: a full server lets taken work finish.
redis.call('ZREM', active, unpack(gone_active))
if #completed_add > 0 then redis.call('ZADD', completed, unpack(completed_add)) end
if #failed_add > 0 then redis.call('ZADD', failed, unpack(failed_add)) end
for set, add in pairs(due_add) do redis.call('ZADD', set, unpack(add)) end
redis.call('HSET', run, unpack(records))
if #results_add > 0 then redis.call('HSET', results, unpack(results_add)) end
if #errors_add > 0 then redis.call('HSET', errors, unpack(errors_add)) end
if counts.complete > 0 then redis.call('HINCRBY', meta, 'completed', counts.complete) end
if counts.fail > 0 then redis.call('HINCRBY', meta, 'failed', counts.fail) end
if counts.retry > 0 then redis.call('HINCRBY', meta, 'retried', counts.retry) end

local limit = n + 64
if counts.complete > 0 then
  retain.trim(completed, jobs, run, results, errors, now, completed_count, completed_age_us, limit)
end
if counts.fail > 0 then
  retain.trim(failed, jobs, run, results, errors, now, failed_count, failed_age_us, limit)
end
if earliest then hint.due(wake, keep, earliest, now) end
return reply
