-- dep_outbox: remove delivered messages to other queues, and read the next ones.
-- @arg   after  text     the last message that was read; - to start
-- @arg   count  integer  the maximum number of messages
-- @rest  word
-- @reply ok, then outcomes (`@`) and subscriptions (`?`), in the form of `edges`

for i = rest, #ARGV do
  if not string.find(ARGV[i], '^[@?]') then return redis.error_reply('BADARG dep_outbox rest') end
end
if redis.call('HEXISTS', meta, 'edges') == 0 then return {'ok'} end
for i = rest, #ARGV, 500 do
  redis.call('ZREM', edges, unpack(ARGV, i, math.min(i + 499, #ARGV)))
end
local from = string.find(after, '^[@?]') and '(' .. after or '[?'
local found = redis.call('ZRANGEBYLEX', edges, from, '(A', 'LIMIT', 0, math.min(count, 500))
return {'ok', unpack(found)}
