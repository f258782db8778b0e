-- note: what running jobs say of themselves, added to their notes.
-- @key   meta    reads the clock's offset under test
-- @key   run     reads tokens
-- @key   notes   adds
-- @rest  id token kind text
-- @reply ok now, then per note: ok | lost (the job is gone, or another has claimed it since)
-- @include clock record noting

-- kind: L (a log line) | P (progress); text: JSON, without line breaks
for i = rest, #ARGV, 4 do
  if not string.find(ARGV[i + 2], '^[LP]$') or string.find(ARGV[i + 3], '\n', 1, true) then
    return redis.error_reply('BADARG note rest')
  end
end

local now = clock.now(meta)
local reply, ids, lines = {'ok', now}, {}, {}
for i = rest, #ARGV, 4 do
  local id = ARGV[i]
  local line = redis.call('HGET', run, id)
  local mine = line and record.token(line) == ARGV[i + 1]
  if mine then
    if not lines[id] then
      ids[#ids + 1] = id
      lines[id] = {}
    end
    local add = lines[id]
    add[#add + 1] = string.format('%s %.0f ', ARGV[i + 2], now) .. ARGV[i + 3]
  end
  reply[#reply + 1] = mine and 'ok' or 'lost'
end
for i = 1, #ids do
  local id = ids[i]
  local old = redis.call('HGET', notes, id)
  redis.call('HSET', notes, id, noting.add(old, table.concat(lines[id], '\n')))
end
return reply
