-- The gate of a queue that has limits: so many jobs may begin in a time (`rate`), so many may run
-- at once (`concurrency`), and none before a moment (`held_until`). `meta` says `limited` while it
-- has one of these, and only then is anything of this read.
--
-- The rate is a bucket of `burst` tokens: a job takes one, and one comes each period / count until
-- it is full. `spent` says when it was last full, or would have been; how many were taken since
-- then; and when the latest was: whole numbers, so that nothing is lost to rounding, however long
-- it goes on. Whatever becomes of the clock, the bucket lacks no more than it holds.
local rate_limit = {}

-- The bucket of a rate, as it is now; nil where there is none that can be read.
function rate_limit.bucket(rate, spent, now)
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
function rate_limit.refilled(b)
  return b.at + math.ceil((b.taken + 1 - b.burst) * b.period / b.count)
end

-- As it is stored.
function rate_limit.stored(b)
  local whole = math.floor(b.taken / b.count)
  return string.format('%.0f %.0f %.0f', b.at + whole * b.period, b.taken - whole * b.count, b.last)
end

-- What is stored of a bucket whose rate is about to be another: it will be full when it would have
-- been, so that setting it again and again frees no tokens.
function rate_limit.carried(b)
  return string.format('%.0f 0 0', b.at + math.ceil(b.taken * b.period / b.count))
end

-- How the gate stands: `room` for so many jobs.
function rate_limit.open(meta, active, now)
  local set = redis.call('HMGET', meta, 'rate', 'spent', 'concurrency', 'held_until')
  local g = {bucket = rate_limit.bucket(set[1], set[2], now), slots = math.huge, room = math.huge,
    held_until = tonumber(set[4]) or 0}
  local most = tonumber(set[3])
  if most then g.slots = math.max(0, most - redis.call('ZCARD', active)) end
  if g.held_until > now then
    g.room = 0
  else
    g.room = math.min(g.slots, g.bucket and g.bucket.tokens or math.huge)
    if set[4] then redis.call('HDEL', meta, 'held_until') end
    if not set[1] and not most then redis.call('HDEL', meta, 'limited') end
  end
  return g
end

-- So many have been taken; `overdue`: more is due, `deadline`: when the next is. Both as they are
-- seen through the gate: what it holds back waits for the moment at which it opens, and, where only
-- the end of a job opens it, for the hint of that. Third: whether it holds back something that is
-- due.
function rate_limit.close(g, meta, now, taken, overdue, deadline)
  local b = g.bucket
  if b and (taken > 0 or b.rewound) then
    if taken > 0 then b.taken, b.last = b.taken + taken, now end
    redis.call('HSET', meta, 'spent', rate_limit.stored(b))
  end
  if taken < g.room then return overdue, deadline end
  if g.slots <= taken then return false, nil, overdue end
  local opens = math.max(now + 1, g.held_until, b and rate_limit.refilled(b) or 0)
  if overdue then return false, opens, true end
  return false, deadline and math.max(deadline, opens)
end

-- When a job that is due at `due` may begin, for all that the rate and a hold say.
function rate_limit.earliest(meta, due, now)
  local set = redis.call('HMGET', meta, 'rate', 'spent', 'held_until')
  local b = rate_limit.bucket(set[1], set[2], now)
  if b and b.tokens < 1 then due = math.max(due, rate_limit.refilled(b)) end
  return math.max(due, tonumber(set[3]) or 0)
end

-- Nothing of the queue begins before `until_us`; who has said later, is right.
function rate_limit.hold(meta, until_us)
  local before = tonumber(redis.call('HGET', meta, 'held_until')) or 0
  redis.call('HSET', meta, 'limited', 1, 'held_until', math.max(before, until_us))
end

-- Of `unbegun`, jobs that were given back before they began, it says when each was claimed. Their
-- tokens go back if none has been taken since: if the bucket has been asked in between, it may
-- have been full by then, and what it had then was enough. Whether any did.
function rate_limit.put_back(b, unbegun)
  local back = 0
  for i = 1, #unbegun do
    if unbegun[i] == b.last then back = back + 1 end
  end
  b.taken = b.taken - back
  return back > 0
end

-- Jobs are active no more, `freed` of them, some of them `unbegun`. Whether someone is to be told
-- that a slot is free.
function rate_limit.settled(meta, active, now, freed, unbegun)
  local set = redis.call('HMGET', meta, 'rate', 'spent', 'concurrency')
  local b = #unbegun > 0 and rate_limit.bucket(set[1], set[2], now)
  if b and rate_limit.put_back(b, unbegun) then
    redis.call('HSET', meta, 'spent', rate_limit.stored(b))
  end
  local most = tonumber(set[3])
  return most and redis.call('ZCARD', active) + freed >= most
end

return rate_limit
