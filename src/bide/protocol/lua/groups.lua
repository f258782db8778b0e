-- groups: read the counts and settings of one group, or of a page of groups.
-- @arg   name    text     of a group; - for all
-- @arg   cursor  text     the cursor of the last reply; 0 to start
-- @arg   limit   integer  how many to read, about
-- @reply ok now cursor    0 at the end; then per group: what `words` has of it

-- A q is before the rate of a group that the queue gives it.

if not string.find(cursor, '^%d+$') or limit < 1 then
  return redis.error_reply('BADARG groups cursor')
end
local reply = {'ok', now, '0'}
local function add(grp)
  local least, most = group.within(grp.name)
  local all = redis.call('ZLEXCOUNT', order, least, most)
  local after_now = string.format('[%s %017.0f', grp.name, now + 1)
  local later = redis.call('ZLEXCOUNT', order, after_now, most)
  local words = {grp.name, later, all - later, group.running(grp.name), grp.priority,
    group.limit(grp), grp.set, grp.paused,
    grp.rate and (grp.is_shared and 'q' or '') .. grp.rate or '', grp.level > 0 and grp.turn or 0}
  for _, word in ipairs(words) do reply[#reply + 1] = word end
end
if name ~= '-' then
  add(group.read(name))
  return reply
end
local scanned = redis.call('HSCAN', groups, cursor, 'COUNT', limit)
reply[3] = scanned[1]
for i = 1, #scanned[2], 2 do
  local grp = group.known(scanned[2][i + 1], scanned[2][i])
  if not grp.rests then add(grp) end
end
return reply
