-- fsck_queues: look at the list of queues, and for queues that it does not have.
-- @key   queues  looks, removes or sets what cannot be read
-- @arg   part    text     entries | keys
-- @arg   cursor  text     where to go on, as the reply before said; 0 to begin
-- @arg   limit   integer  how many to look at, about
-- @arg   repair  integer  1 to mend what is found, 0 only to say it
-- @reply ok now cursor    where to go on, 0 at the end; then per finding: kind id says fix
-- @include evidence

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
  if part == 'entries' then
    tell('type', queues, 'is a ' .. type_of .. ', where a hash belongs', '')
  end
  return reply
end
if part == 'entries' then
  local scanned = redis.call('HSCAN', queues, cursor, 'COUNT', limit)
  reply[3] = scanned[1]
  if repair == 1 then redis.call('HDEL', queues, '') end -- for a full server
  for i = 1, #scanned[2], 2 do
    local name, at = scanned[2][i], scanned[2][i + 1]
    if not string.find(name, '^[^%s%c{}]+$') or #name > 128 then
      if tell('queues', name, 'is no name that a queue can have', 'is removed') then
        redis.call('HDEL', queues, name)
      end
    elseif not evidence.moment(at, 0, now + DAY) then
      if tell('queues', name, 'when it was first used is no time: ' .. string.sub(at, 1, 40),
        'becomes now') then
        redis.call('HSET', queues, name, now)
      end
    end
  end
elseif part == 'keys' then
  -- The caller looks again before it believes one: a queue is noted right after its first job.
  local prefix = string.sub(queues, 1, -7)
  local begin = string.gsub(prefix, '[][*?\\^-]', '\\%0')
  local scanned = redis.call('SCAN', cursor, 'MATCH', begin .. '{*}*', 'COUNT', limit)
  reply[3] = scanned[1]
  for _, where in ipairs(scanned[2]) do
    local name = string.match(string.sub(where, #prefix + 1), '^{([^{}%s%c]+)}')
    if name and redis.call('HEXISTS', queues, name) == 0 then
      tell('queues', name, 'has keys, and is not in the list of queues', 'is added')
    end
  end
else
  return redis.error_reply('BADARG fsck_queues part')
end
return reply
