-- forget: remove what is left of a queue that holds nothing and has no worker.
-- @key   meta       looks, removes
-- @key   due        counts, removes
-- @key   jobs       counts, removes
-- @key   run        removes
-- @key   results    removes
-- @key   notes      removes
-- @key   terms      removes
-- @key   expiring   removes
-- @key   order      removes
-- @key   held       removes
-- @key   groups     counts, removes
-- @key   turns      removes
-- @key   unique     removes
-- @key   folded     removes
-- @key   blocked    counts, removes
-- @key   edges      counts, removes
-- @key   active     counts, removes
-- @key   completed  counts, removes
-- @key   failed     counts, removes
-- @key   cancelled  counts, removes
-- @key   asked      removes
-- @key   waiters    removes
-- @key   minutes    removes
-- @key   wake       removes
-- @key   keep       counts, removes
-- @key   park       counts, removes
-- @key   claims     removes
-- @key   schedules  removes
-- @key   schedule   counts, removes
-- @key   scheduled  removes
-- @key   events     removes
-- @key   listeners  removes
-- @key   trash      counts, removes
-- @key   aside      looks
-- @reply ok         it held nothing: nothing is left of it
-- @reply holds, then what and how many    nothing was removed
-- @include clock

-- what: pending (delayed, waiting, blocked, or set aside by `purge`), active, ended; schedules;
-- groups (with settings); edges (news for jobs of other queues); paused; limits; aside (keys that
-- `bide fsck` has moved there); served (by how many who wait for its jobs)
local GRACE = 50000 -- by which a worker that lives may look later than it has promised

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

local now = clock.now(meta)
local pending, running = total(due) + total(trash) + total({blocked}), total({active})
local ended = total({completed, failed, cancelled})
holds('pending', pending)
holds('active', running)
holds('ended', math.max(ended, redis.call('HLEN', jobs) - pending - running))
holds('schedules', redis.call('HLEN', schedule))
if #found == 1 then -- those of jobs go with their jobs
  holds('groups', redis.call('HLEN', groups))
  holds('edges', total({edges}))
end
local set = redis.call('HMGET', meta, 'paused', 'rate', 'concurrency')
if set[1] then holds('paused', 1) end
if set[2] or set[3] then holds('limits', 1) end
local kept = 0
for i = 1, #aside do kept = kept + redis.call('EXISTS', aside[i]) end
holds('aside', kept)
local since = string.format('%.0f', now - GRACE)
holds('served', redis.call('ZCOUNT', keep, since, '+inf')
  + redis.call('ZCOUNT', park, since, '+inf'))
if #found > 1 then return found end

for i = 1, #due do redis.call('UNLINK', due[i]) end
for i = 1, #trash do redis.call('UNLINK', trash[i]) end
redis.call('UNLINK', meta, jobs, run, results, notes, terms, expiring, order, held, groups, turns,
  unique, folded, blocked, edges, active, completed, failed, cancelled, asked, waiters, minutes,
  wake, keep, park, claims, schedules, schedule, scheduled, events, listeners)
return {'ok'}
