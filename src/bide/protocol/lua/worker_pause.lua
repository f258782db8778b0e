-- worker_pause: ask workers to pause, or to resume; running jobs continue.
-- @arg   paused  integer  1 to claim nothing, 0 to claim again
-- @rest  worker
-- @reply ok now, then per worker: ok | gone

local reply = {'ok', now}
for i = rest, #ARGV do
  local known = redis.call('HEXISTS', workers, ARGV[i]) == 1
  if known then
    local asked = ARGV[i] .. ' pause' -- no name has a space
    redis.call('HDEL', workers, asked)
    if paused == 1 then redis.call('HSET', workers, asked, now) end
    -- May be lost: the next heartbeat says the same. Older workers stop where they hear their name.
    redis.pcall('PUBLISH', workers, ARGV[i] .. (paused == 1 and ' pause' or ' resume'))
  end
  reply[#reply + 1] = known and 'ok' or 'gone'
end
return reply
