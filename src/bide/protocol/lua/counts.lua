-- counts: count the jobs in each state, and read the queue's counters.
-- @reply ok now delayed waiting active completed failed cancelled blocked next_due idle, then
-- @reply meta, then schedules next_fire

local all, waiting, next_due = 0, 0, 0
for i = 1, #due do
  local size = redis.call('ZCARD', due[i])
  if size > 0 then
    all = all + size
    waiting = waiting + redis.call('ZCOUNT', due[i], '-inf', now)
    local head = tonumber(redis.call('ZRANGE', due[i], 0, 0, 'WITHSCORES')[2])
    if next_due == 0 or head < next_due then next_due = head end
  end
end
local idle = redis.call('ZCOUNT', keep, now, '+inf') + redis.call('ZCOUNT', park, now, '+inf')
local first = redis.call('ZRANGE', schedules, 0, 0, 'WITHSCORES')
return {'ok', now, all - waiting, waiting, redis.call('ZCARD', active),
  redis.call('ZCARD', completed), redis.call('ZCARD', failed), redis.call('ZCARD', cancelled),
  redis.call('ZCARD', blocked), next_due, idle, redis.call('HGETALL', meta),
  redis.call('HLEN', schedule), tonumber(first[2]) or 0}
