-- worker_stop: ask workers to stop, as a signal would.
-- @rest  worker
-- @reply ok now, then per worker: ok | gone

local reply = {'ok', now}
for i = rest, #ARGV do
  local known = redis.call('HEXISTS', workers, ARGV[i]) == 1
  if known then
    redis.call('HSET', workers, ARGV[i] .. ' stop', now)
    redis.pcall('PUBLISH', workers, ARGV[i]) -- may be lost: the next heartbeat says the same
  end
  reply[#reply + 1] = known and 'ok' or 'gone'
end
return reply
