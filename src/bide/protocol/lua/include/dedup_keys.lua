-- The holders of keys.
--
-- `unique` has per key, `<kind>:<key>`, a line `<id> <until> <since>[ <more>]`:
--
--   kind   u: unique; d: debounced; t: throttled; g: batched
--   id     of the job that holds it, or '-'
--   until  f: it holds until it has ended; s: until it has begun; or until that time (µs)
--   since  when it came (µs)
--   more   g: how many items it has; and by when it is due, if an item has ended it
--          t: when the job that holds it is due, or 0; then when the jobs of the key are, in order
local dedup_keys = {}

local function numbers(text)
  local found = {}
  for number in string.gmatch(text, '%d+') do found[#found + 1] = tonumber(number) end
  return found
end

-- What a line of constraints asks of a key, or nil. u: way (k: keep, r: replace, x: reject), till;
-- else the numbers, as `constraints` has them.
function dedup_keys.rule(line)
  local key, kind, rest = string.match(line, 'k=(%S+) f=(%l)(%S+)')
  if not key then return nil end
  return {field = kind .. ':' .. key, kind = kind, way = string.sub(rest, 1, 1),
    till = string.sub(rest, 3), n = numbers(rest)}
end

-- An entry, or nil for what is none.
function dedup_keys.read(text)
  local id, till, since, more = string.match(text or '', '^(%S+) (%w+) (%d+) ?([%d ]*)$')
  if not id or not (till == 'f' or till == 's' or string.find(till, '^%d+$')) then return nil end
  return {id = id, till = till, since = tonumber(since), more = numbers(more)}
end

-- A job runs again after its end: the key that it held until then stays free.
function dedup_keys.leave(id, line)
  local rule = dedup_keys.rule(line)
  local entry = rule and dedup_keys.read(redis.call('HGET', unique, rule.field))
  if entry and entry.id == id and entry.till == 'f' then
    redis.call('HDEL', unique, rule.field)
  end
end

-- Frees the keys that these jobs hold for a time, because they are being deleted; or were
-- cancelled, and nothing is about to say so any more.
function dedup_keys.free(ids)
  if redis.call('EXISTS', unique) == 0 then return end
  local lines = redis.call('HMGET', terms, unpack(ids))
  for i, id in ipairs(ids) do
    local rule = lines[i] and dedup_keys.rule(lines[i])
    if rule and rule.kind == 'u' then
      local entry = dedup_keys.read(redis.call('HGET', unique, rule.field))
      if entry and entry.id == id then redis.call('HDEL', unique, rule.field) end
    end
  end
end

return dedup_keys
