-- fsck_queues: look at the list of queues.
-- @key   queues  looks, removes or sets what cannot be read
-- @arg   cursor  text     where to go on, as the reply before said; 0 to begin
-- @arg   limit   integer  how many to look at, about
-- @arg   repair  integer  1 to mend what is found, 0 only to say it
-- @reply ok now cursor    where to go on, 0 at the end; then per finding: kind id says fix
-- @include fsck_record

local DAY = 86400000000
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local reply = {'ok', now, '0'}
local function tell(kind, id, says, fix)
  for _, word in ipairs({kind, id, says, fix}) do reply[#reply + 1] = word end
  return repair == 1 and fix ~= ''
end

local type_of = redis.call('TYPE', queues).ok
if type_of ~= 'hash' and type_of ~= 'none' then
  tell('type', queues, 'is a ' .. type_of .. ', where a hash belongs', '')
  return reply
end
local scanned = redis.call('HSCAN', queues, cursor, 'COUNT', limit)
reply[3] = scanned[1]
if repair == 1 then redis.call('HDEL', queues, '') end -- for a full server
for i = 1, #scanned[2], 2 do
  local name, at = scanned[2][i], scanned[2][i + 1]
  if not string.find(name, '^[^%s%c{}]+$') or #name > 128 then
    if tell('queues', name, 'is not a valid name of a queue', 'is removed') then
      redis.call('HDEL', queues, name)
    end
  elseif not fsck_record.moment(at, 0, now + DAY) then
    if tell('queues', name, 'the time of its first use is invalid: ' .. string.sub(at, 1, 40),
      'becomes now') then
      redis.call('HSET', queues, name, now)
    end
  end
end
return reply
