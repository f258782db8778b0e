-- schedule_remove: remove schedules; the jobs that they have made stay.
-- @key   meta       marks that there are no schedules, with the last
-- @key   schedules  removes
-- @key   schedule   removes
-- @key   scheduled  removes
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
