-- upgrade: convert the data of a queue to the next or the previous schema, in limited steps.
-- @arg   target   integer  the schema
-- @arg   cursor   text     what the last call has returned; 0 to begin
-- @reply ok cursor changed, where cursor is 0 at the end
-- @reply cannot schema

local PIECE = 200
local hashes = {run = run, notes = notes, results = results}

if not string.find(cursor, '^%d+$') then return redis.error_reply('BADARG upgrade cursor') end
local schema = tonumber(redis.call('HGET', meta, 'schema') or 1)
local upward = target >= schema
local step = schemas[upward and target or schema]
if math.abs(target - schema) > 1 or (target ~= schema and not step) then
  return {'cannot', schema}
end

-- The mark is moved before the first piece on the way up, and behind the last on the way down: who
-- does not know the higher schema touches nothing meanwhile. Who does, writes what is the target.
if upward then
  if target > schema then redis.call('HSET', meta, 'schema', target) end
  redis.call('HDEL', meta, 'writes')
elseif cursor == '0' then
  redis.call('HSET', meta, 'writes', target)
end

local changed, after = {}, '0'
if step then
  local hash, convert = hashes[step.hash], upward and step.up or step.down
  local page = read_budget.scan(hash, cursor, PIECE, 0.4)
  after = page[1]
  for i = 1, #page[2], 2 do
    local value = convert(page[2][i + 1])
    if value and value ~= page[2][i + 1] then
      changed[#changed + 1] = page[2][i]
      changed[#changed + 1] = value
    end
  end
  if #changed > 0 then redis.call('HSET', hash, unpack(changed)) end
end

if after == '0' and not upward then
  redis.call('HDEL', meta, 'writes')
  redis.call('HSET', meta, 'schema', target)
end
return {'ok', after, #changed / 2}
