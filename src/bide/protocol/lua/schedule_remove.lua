-- schedule_remove: remove schedules; the jobs that they have created stay.
-- @rest  name
-- @reply ok, then per schedule: ok | gone

local reply = {'ok'}
for i = rest, #ARGV do
  redis.call('ZREM', schedules, ARGV[i])
  redis.call('HDEL', scheduled, ARGV[i])
  reply[#reply + 1] = redis.call('HDEL', schedule, ARGV[i]) == 1 and 'ok' or 'gone'
end
if redis.call('HLEN', schedule) == 0 then redis.call('HDEL', meta, 'scheduled') end
return reply
