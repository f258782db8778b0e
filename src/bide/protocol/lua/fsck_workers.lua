-- fsck_workers: look at what workers said of themselves, and remove what none can have said.
-- @key   workers  looks, removes
-- @arg   cursor   text     where to go on, as the reply before said; 0 to begin
-- @arg   limit    integer  how many to look at, about
-- @arg   repair   integer  1 to mend what is found, 0 only to say it
-- @reply ok now cursor    where to go on, 0 at the end; then per finding: kind id says fix
-- @include fsck_record

-- A live worker sends its next heartbeat within seconds, so nothing is lost.
local DAY = 86400000000
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local type_of = redis.call('TYPE', workers).ok
if type_of ~= 'hash' and type_of ~= 'none' then
  return {'ok', now, '0', 'type', workers, 'is a ' .. type_of .. ', where a hash belongs', ''}
end
local scanned = redis.call('HSCAN', workers, cursor, 'COUNT', limit)
local reply = {'ok', now, scanned[1]}
for i = 1, #scanned[2], 2 do
  local name, value = scanned[2][i], scanned[2][i + 1]
  local form = string.find(name, ' stop', 1, true) and '^(%d+)$' or '^(%d+) {'
  local at = string.match(value, form)
  local says
  if not at then
    says = 'what it said of itself cannot be read'
  elseif not fsck_record.moment(at, 0, now + DAY) then
    says = 'was seen at a time that lies too far ahead: ' .. at
  end
  if says then
    for _, word in ipairs({'workers', name, says, 'is removed'}) do reply[#reply + 1] = word end
    if repair == 1 then redis.call('HDEL', workers, name) end
  end
end
return reply
