-- events_hold: hold the stream of events open for a named listener; return where it continues.
-- @arg   name       text     of the listener
-- @arg   after      text     the id of the last event that it read; - for new events only
-- @arg   hold_us    integer  how long from now it holds the stream open; 0 to stop
-- @reply ok now after gap    the id from which to continue; 1 if events before it are lost

-- Listeners that are known by name; for all others the time is kept under one that none has.
local MOST, OTHERS = 64, '{others}'

if not string.find(name, '^[^%s%c]+$') then return redis.error_reply('BADARG events_hold name') end
local read_opened, read_n = string.match(after, '^(%d+)-(%d+)$')
read_n = tonumber(read_n)
if not read_n and after ~= '-' then return redis.error_reply('BADARG events_hold after') end

-- Where another program has a key of this name, that is an error before anything is written.
local last = redis.call('XREVRANGE', events, '+', '-', 'COUNT', 1)[1]

-- Removes first, because a full server refuses what adds before.
local others_until = tonumber(redis.call('ZSCORE', listeners, OTHERS) or 0)
redis.call('ZREM', listeners, name, OTHERS)
redis.call('ZREMRANGEBYSCORE', listeners, '-inf', now)
if hold_us > 0 then
  -- One more than may be: the first whose time would be over is forgotten, and its time is not,
  -- because those that are known may let go before.
  local excess = redis.call('ZCARD', listeners) - (MOST - 1)
  if excess > 0 then
    local forgotten = redis.call('ZPOPMIN', listeners, excess)
    others_until = math.max(others_until, tonumber(forgotten[#forgotten]))
  end
  redis.call('ZADD', listeners, now + hold_us, name)
end
if others_until > now then redis.call('ZADD', listeners, others_until, OTHERS) end
local set = redis.call('HMGET', meta, 'listened', 'told')
local longest = redis.call('ZRANGE', listeners, -1, -1, 'WITHSCORES')
if not longest[2] then
  redis.call('DEL', events)
  redis.call('HDEL', meta, 'listened', 'told')
  return {'ok', now, after, 0}
end

local was_until, opened = string.match(set[1] or '', '^(%d+) (%d+)$')
local told = tonumber(set[2] or 0)
local is_open = opened and tonumber(was_until) > now
-- A server that has lost its latest writes would give ids to other events than those they had.
local is_rolled_back = opened and read_opened == opened and read_n > told
-- Behind an entry that another program has written there is no room for events.
local last_opened, last_n = string.match(last and last[1] or '', '^(%d+)-(%d+)$')
local is_blocked = last and (last_opened ~= opened or tonumber(last_n) > told)
if not is_open or is_rolled_back or is_blocked then
  redis.call('DEL', events)
  opened, told = string.format('%.0f', now), 0
end
local until_us = tonumber(longest[2])
redis.call('HSET', meta, 'listened', string.format('%.0f ', until_us) .. opened, 'told', told)
redis.call('PEXPIRE', events, math.ceil((until_us - now) / 1000))

local head = opened .. '-'
local latest = head .. string.format('%.0f', told)
if after == '-' then return {'ok', now, latest, 0} end
if read_opened ~= opened then
  local first = redis.call('XRANGE', events, '-', '+', 'COUNT', 1)
  if not first[1] then return {'ok', now, latest, 1} end
  local first_opened, n = string.match(first[1][1], '^(%d+)-(%d+)$')
  local before = first_opened == opened and n - 1 or 0
  return {'ok', now, head .. string.format('%.0f', before), 1}
end
-- A hole between entries shows when they are read; here, only one at the end.
if read_n < told and #redis.call('XRANGE', events, '(' .. after, '+', 'COUNT', 1) == 0 then
  return {'ok', now, latest, 1}
end
return {'ok', now, after, 0}
