-- The limits of a queue: so many jobs may begin in a time (`rate`), so many may run
-- at once (`concurrency`), and none before a moment (`held_until`). `meta` says `limited` while it
-- has one of these, and only then is anything of this read. The rate is a bucket of `burst` tokens:
-- a job takes one, and one comes each period / count until it is full. `spent` says when it was
-- last full, or would have been; how many were taken since then; and when the latest was: whole
-- numbers, so that nothing is lost to rounding, however long it lasts. Whatever becomes of the
-- clock, the bucket lacks no more than it holds.
local rate_limit = {}

-- The bucket of a rate, as it is now; nil where there is none that can be read.
function rate_limit.bucket(rate, spent)
  local count, period, burst = string.match(rate or '', '^(%d+) (%d+) (%d+)$')
  count, period, burst = tonumber(count), tonumber(period), tonumber(burst)
  if not count or count < 1 or period < 1 or burst < 1 then return nil end
  local at, taken, last = string.match(spent or '', '^(%d+) (%d+) (%d+)$')
  at, taken, last = tonumber(at) or now, tonumber(taken) or 0, tonumber(last) or 0
  local full_at, rewound = at + taken * period / count, false
  if full_at <= now then
    at, taken = now, 0
  elseif full_at > now + burst * period / count then
    at, taken, rewound = now, burst, true
  end
  local tokens = math.floor((now - at) * count / period - taken + burst)
  return {count = count, period = period, burst = burst, at = at, taken = taken, last = last,
    rewound = rewound, tokens = math.max(0, tokens)}
end

-- When it has a token again.
function rate_limit.refilled(bucket)
  return bucket.at + math.ceil((bucket.taken + 1 - bucket.burst) * bucket.period / bucket.count)
end

-- When it has all tokens again.
function rate_limit.full_at(bucket)
  return bucket.at + math.ceil(bucket.taken * bucket.period / bucket.count)
end

-- As it is stored.
function rate_limit.stored(bucket)
  local whole = math.floor(bucket.taken / bucket.count)
  return string.format('%.0f %.0f %.0f', bucket.at + whole * bucket.period,
    bucket.taken - whole * bucket.count, bucket.last)
end

-- What is stored of a bucket whose rate becomes another: it will be full when it would have been,
-- so that setting it again and again frees no tokens. But it lacks no more than it holds.
function rate_limit.carried(bucket, rate)
  local spent = string.format('%.0f 0 0', rate_limit.full_at(bucket))
  return rate_limit.stored(rate_limit.bucket(rate, spent))
end

-- How the limits stand: `room` for so many jobs.
function rate_limit.open(active)
  local set = redis.call('HMGET', meta, 'rate', 'spent', 'concurrency', 'held_until')
  local limits = {bucket = rate_limit.bucket(set[1], set[2]), slots = math.huge, room = math.huge,
    held_until = tonumber(set[4]) or 0}
  local most = tonumber(set[3])
  if most then limits.slots = math.max(0, most - redis.call('ZCARD', active)) end
  if limits.held_until > now then
    limits.room = 0
  else
    limits.room = math.min(limits.slots, limits.bucket and limits.bucket.tokens or math.huge)
    if set[4] then redis.call('HDEL', meta, 'held_until') end
    if not set[1] and not most then redis.call('HDEL', meta, 'limited') end
  end
  return limits
end

-- So many have been taken; `overdue`: more is due, `deadline`: when the next is. Both as they are
-- seen with the limits: what they hold back waits for the moment at which they let it start,
-- and, where only the end of a job does, for the wake-up message of that. Third: whether they hold
-- back something that is due.
function rate_limit.close(limits, taken, overdue, deadline)
  local bucket = limits.bucket
  if bucket and (taken > 0 or bucket.rewound) then
    if taken > 0 then bucket.taken, bucket.last = bucket.taken + taken, now end
    redis.call('HSET', meta, 'spent', rate_limit.stored(bucket))
  end
  if taken < limits.room then return overdue, deadline end
  if limits.slots <= taken then return false, nil, overdue end
  local opens = math.max(now + 1, limits.held_until, bucket and rate_limit.refilled(bucket) or 0)
  if overdue then return false, opens, true end
  return false, deadline and math.max(deadline, opens)
end

-- When a job that is due at `due` may begin, for all that the rate and a hold say.
function rate_limit.earliest(due)
  local set = redis.call('HMGET', meta, 'rate', 'spent', 'held_until')
  local bucket = rate_limit.bucket(set[1], set[2])
  if bucket and bucket.tokens < 1 then due = math.max(due, rate_limit.refilled(bucket)) end
  return math.max(due, tonumber(set[3]) or 0)
end

-- Of `unbegun`, jobs that were returned before they began, it says when each was claimed. Their
-- tokens go back if none has been taken since: if the bucket has been asked in between, it may
-- have been full by then, and what it had then was enough. Whether any did.
function rate_limit.put_back(bucket, unbegun)
  local back = 0
  for i = 1, #unbegun do
    if unbegun[i] == bucket.last then back = back + 1 end
  end
  bucket.taken = bucket.taken - back
  return back > 0
end

-- Jobs are active no more, `freed` of them, some of them `unbegun`. Whether someone is to be told
-- that a slot is free.
function rate_limit.settled(active, freed, unbegun)
  local set = redis.call('HMGET', meta, 'rate', 'spent', 'concurrency')
  local bucket = #unbegun > 0 and rate_limit.bucket(set[1], set[2])
  if bucket and rate_limit.put_back(bucket, unbegun) then
    redis.call('HSET', meta, 'spent', rate_limit.stored(bucket))
  end
  local most = tonumber(set[3])
  return most and redis.call('ZCARD', active) + freed >= most
end

return rate_limit
