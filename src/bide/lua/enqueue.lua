-- enqueue: add jobs, each due at its own time; an id that exists changes nothing.
-- @key   meta    reads whether a trash is left, who listens, and the limits; marks large bodies
-- @key   due     adds
-- @key   jobs    adds the bodies
-- @key   run     removes what a trashed namesake left
-- @key   notes   removes what a trashed namesake left
-- @key   wake    hints when a job is the earliest
-- @key   keep    reads the earliest promise
-- @key   trash   removes namesakes
-- @key   events  tells listeners
-- @rest  id when priority body
-- @last  wanted  what the caller will wait for behind this: replica | fsync | replica,fsync
-- @reply ok now, then per job: new due | exists 0
-- @reply cannot    what the server lacks for what is wanted; nothing was added
-- @include clock when hint sweep event weigh durable gate

local LONGEST = 128 -- bytes of an id

-- Adds first, so that a full server refuses the whole call and nothing of it.
for i = rest, #ARGV, 4 do
  local priority = tonumber(ARGV[i + 2])
  if #ARGV[i] > LONGEST or not string.find(ARGV[i], '^[^%s%c{}]+$') or not when.valid(ARGV[i + 1])
    or not priority or priority < 0 or priority > 9 or priority % 1 ~= 0 then
    return redis.error_reply('BADARG enqueue rest')
  end
end

if not durable.valid(wanted) then return redis.error_reply('BADARG enqueue wanted') end
local lack = durable.lacks(wanted)
if lack then return {'cannot', lack} end

local now = clock.now(meta)
local known, is_known, large = {}, {}, false
for i = rest, #ARGV, 4 do
  if redis.call('HSETNX', jobs, ARGV[i], ARGV[i + 3]) == 0 then
    known[#known + 1] = ARGV[i]
    is_known[i] = true
  end
  if #ARGV[i + 3] > weigh.LARGE then large = true end
end
if large then redis.call('HSETNX', meta, 'large', 1) end

-- A namesake among what `empty` has set aside is as good as deleted.
local freed = {}
if #known > 0 and redis.call('HEXISTS', meta, 'trash') == 1 then
  freed = sweep.take(trash, run, notes, known)
end

local set = redis.call('HMGET', meta, 'listened', 'limited')
local book = event.open(set[1], now)
local reply = {'ok', now}
local earliest
local adds = {}
for i = rest, #ARGV, 4 do
  local id, new = ARGV[i], not is_known[i]
  if freed[id] then
    freed[id] = nil
    new = true
    redis.call('HSET', jobs, id, ARGV[i + 3])
  end
  if new then
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
    if book then event.add(book, 'added', 'enqueue', ARGV[i], '-', 0, at, '') end
    reply[#reply + 1] = 'new'
    reply[#reply + 1] = at
  else
    reply[#reply + 1] = 'exists'
    reply[#reply + 1] = 0
  end
end

-- A repeat that finds its ids writes, too: WAIT counts what its own connection has written.
if not earliest and wanted ~= '' and rest <= #ARGV then
  redis.call('HSET', meta, 'repeated', now)
end
for set, add in pairs(adds) do
  redis.call('ZADD', set, unpack(add))
end
if book then event.write(meta, events, book) end
if earliest and set[2] then earliest = gate.earliest(meta, earliest, now) end
if earliest then hint.due(wake, keep, earliest, now) end
return reply
