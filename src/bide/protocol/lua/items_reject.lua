-- items_reject: fail popped items that cannot be decoded.
-- @rest  id why
-- @reply ok now, then per item: ok | gone

local limits = retention.limits()
event.open(limits.listened)
local reply, count = {'ok', now}, 0
for i = rest, #ARGV, 2 do
  local id, why = ARGV[i], ARGV[i + 1]
  local word = 'gone'
  if redis.call('ZREM', completed, id) == 1 then
    word, count = 'ok', count + 1
    local rec = record_store.read(id) or run_record.unknown(run_record.fresh(now))
    rec.head = run_record.settled(rec.head, 'F')
    redis.call('ZADD', failed, now, id)
    record_store.write(id, rec)
    history.note(id, history.error(rec, why))
    if book then event.add('failed', 'reject', id, rec.worker, rec.attempt, 0, why) end
  elseif redis.call('ZSCORE', failed, id) then
    word = 'ok' -- by this call, whose reply was lost
  end
  reply[#reply + 1] = word
end
if count > 0 then
  redis.pcall('HINCRBY', meta, 'completed', -count)
  redis.pcall('HINCRBY', meta, 'failed', count)
  retention.trim(limits, 2, count + 64)
  if book then event.write() end
end
return reply
