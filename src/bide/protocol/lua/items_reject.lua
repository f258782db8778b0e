-- items_reject: data that were popped, and that cannot be given out, have failed after all.
-- @key   meta       counts, reads the retention
-- @key   jobs       trims
-- @key   run        notes how it ended, trims
-- @key   results    trims
-- @key   notes      adds why, trims
-- @key   terms      trims
-- @key   completed  removes
-- @key   failed     adds, trims
-- @key   events     tells listeners
-- @rest  id why
-- @reply ok now, then per item: ok | gone
-- @include clock run_record retention history event

local now = clock.now(meta)
local limits = retention.limits(meta)
local book = event.open(limits.listened, now)
local reply, count = {'ok', now}, 0
for i = rest, #ARGV, 2 do
  local id, why = ARGV[i], ARGV[i + 1]
  local word = 'gone'
  if redis.call('ZREM', completed, id) == 1 then
    word, count = 'ok', count + 1
    local line = redis.call('HGET', run, id)
    local rec = run_record.parse(line) or run_record.unknown(run_record.fresh(now), now)
    redis.call('ZADD', failed, now, id)
    redis.call('HSET', run, id, run_record.format(run_record.settled(rec.head, 'F'), rec))
    local noted = redis.call('HGET', notes, id)
    redis.call('HSET', notes, id, history.add(noted, history.error(rec, now, why)))
    if book then event.add(book, 'failed', 'refuse', id, rec.worker, rec.attempt, 0, why) end
  elseif redis.call('ZSCORE', failed, id) then
    word = 'ok' -- by this call, whose reply was lost
  end
  reply[#reply + 1] = word
end
if count > 0 then
  redis.pcall('HINCRBY', meta, 'completed', -count)
  redis.pcall('HINCRBY', meta, 'failed', count)
  retention.trim(meta, failed, {jobs, run, results, notes, terms}, now, limits, 2, count + 64)
  if book then event.write(meta, events, book) end
end
return reply
