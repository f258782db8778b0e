-- dep_outbox: remove what was told to other queues or asked of them, and read what is still to be.
-- @arg   after  text     what was read last; - to begin
-- @arg   count  integer  how much to read at most
-- @rest  word
-- @reply ok, then what is to be told (`@`) or asked (`?`), as `edges` has it

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
