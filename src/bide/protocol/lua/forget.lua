-- forget: remove the remaining data of a queue that holds nothing and has no worker.
-- @reply ok         it held nothing, and was removed
-- @reply holds, then what and how many    nothing was removed

-- what: pending (delayed, waiting, blocked, or set aside by `purge`), active, ended; schedules;
-- groups (with settings); edges (messages for jobs of other queues); paused; limits; quarantined
-- (keys that `bide fsck` has moved); served (by how many who wait for its jobs)
local GRACE = 50000 -- by which a worker that lives may claim later than at its deadline

local found = {'holds'}
local function holds(what, count)
  if count > 0 then
    found[#found + 1] = what
    found[#found + 1] = count
  end
end
local function total(sets)
  local sum = 0
  for i = 1, #sets do sum = sum + redis.call('ZCARD', sets[i]) end
  return sum
end

local pending, running = total(due) + total(trash) + total({blocked}), total({active})
local ended = total({completed, failed, cancelled})
holds('pending', pending)
holds('active', running)
holds('ended', math.max(ended, redis.call('HLEN', jobs) - pending - running))
holds('schedules', redis.call('HLEN', schedule))
if #found == 1 then -- those of jobs go with their jobs
  holds('groups', redis.call('HLEN', groups) - redis.call('ZCARD', resting))
  -- Not marks of parents that were removed: no child is left that would be told.
  holds('edges', redis.call('ZCARD', edges) - redis.call('ZLEXCOUNT', edges, '[!', '("'))
end
local set = redis.call('HMGET', meta, 'paused', 'rate', 'concurrency', 'group_rate')
if set[1] then holds('paused', 1) end
if set[2] or set[3] or set[4] then holds('limits', 1) end
local kept = 0
for i = 1, #aside do kept = kept + redis.call('EXISTS', aside[i]) end
holds('quarantined', kept)
local since = string.format('%.0f', now - GRACE)
holds('served', redis.call('ZCOUNT', keep, since, '+inf')
  + redis.call('ZCOUNT', park, since, '+inf'))
if #found > 1 then return found end

for i = 1, #due do redis.call('UNLINK', due[i]) end
for i = 1, #trash do redis.call('UNLINK', trash[i]) end
redis.call('UNLINK', meta, jobs, run, results, notes, terms, expiring, order, held, groups, turns,
  resting, unique, folded, blocked, edges, active, completed, failed, cancelled, asked, waiters,
  minutes, wake, keep, park, claims, schedules, schedule, scheduled, events, listeners)
return {'ok'}
