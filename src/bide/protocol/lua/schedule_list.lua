-- schedule_list: read schedules by name, or without names a page of all.
-- @arg   cursor    text     the cursor of the last reply; 0 to start
-- @arg   limit     integer  how many, about
-- @rest  name
-- @reply ok now cursor    where to continue, 0 at the end; then per schedule: name record

if not string.find(cursor, '^%d+$') then return redis.error_reply('BADARG schedule_list cursor') end
if rest > #ARGV then
  local scanned = redis.call('HSCAN', schedule, cursor, 'COUNT', limit)
  return {'ok', now, scanned[1], unpack(scanned[2])}
end
local reply = {'ok', now, '0'}
for i = rest, #ARGV do
  local line = redis.call('HGET', schedule, ARGV[i])
  if line then
    reply[#reply + 1] = ARGV[i]
    reply[#reply + 1] = line
  end
end
return reply
