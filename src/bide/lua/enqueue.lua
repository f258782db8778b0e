-- enqueue: add jobs, each due at its own time; an id that exists changes nothing.
-- @key   meta    reads whether a trash is left
-- @key   due     adds
-- @key   jobs    adds the bodies
-- @key   run     removes what a trashed namesake left
-- @key   results removes what a trashed namesake left
-- @key   errors  removes what a trashed namesake left
-- @key   wake    hints when a job is the earliest
-- @key   keep    reads the earliest promise
-- @key   trash   removes namesakes
-- @rest  id when priority body
-- @reply ok now, then per job: new due | exists 0
-- @include clock when hint sweep

-- Adds first, so that a full server refuses the whole call and nothing of it.
for i = rest, #ARGV, 4 do
  local priority = tonumber(ARGV[i + 2])
  if not string.find(ARGV[i], '^[^%s%c{}]+$') or not when.valid(ARGV[i + 1]) or not priority or priority < 0
    or priority > 9 or priority % 1 ~= 0 then
    return redis.error_reply('BADARG enqueue rest')
  end
end

local now = clock.now(meta)
local reply = {'ok', now}
local earliest
local adds = {}
local emptied

local function replaces_trash(id, body)
  if emptied == nil then emptied = redis.call('HEXISTS', meta, 'trash') == 1 end
  if not emptied or not sweep.take(trash, id) then return false end
  redis.call('HDEL', run, id)
  redis.call('HDEL', results, id)
  redis.call('HDEL', errors, id)
  redis.call('HSET', jobs, id, body)
  return true
end

for i = rest, #ARGV, 4 do
  local id, body = ARGV[i], ARGV[i + 3]
  if redis.call('HSETNX', jobs, id, body) == 1 or replaces_trash(id, body) then
    local at = when.us(ARGV[i + 1], now)
    local set = due[10 - tonumber(ARGV[i + 2])]
    local add = adds[set]
    if not add then
      add = {}
      adds[set] = add
    end
    add[#add + 1] = at
    add[#add + 1] = id
    if not earliest or at < earliest then earliest = at end
    reply[#reply + 1] = 'new'
    reply[#reply + 1] = at
  else
    reply[#reply + 1] = 'exists'
    reply[#reply + 1] = 0
  end
end

for set, add in pairs(adds) do
  redis.call('ZADD', set, unpack(add))
end
if earliest then hint.due(wake, keep, earliest, now) end
return reply
