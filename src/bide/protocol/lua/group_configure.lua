-- group_configure: configure a group: its concurrency, its rate, and whether it is paused.
-- @arg   name         text  of the group
-- @arg   concurrency  text  how many at once, whatever its jobs ask for; 0: as they ask; - as it is
-- @arg   paused       text  1 or 0; - as it is
-- @arg   rate         text  count, period in µs and burst; none: as all groups have; - as it is
-- @reply ok

if not string.find(name, '^[^%s%c{}]+$') or #name > 128 then
  return redis.error_reply('BADARG group_configure name')
end
if concurrency ~= '-' and not (string.find(concurrency, '^%d+$') and #concurrency <= 6) then
  return redis.error_reply('BADARG group_configure concurrency')
end
if not string.find(paused, '^[01-]$') then
  return redis.error_reply('BADARG group_configure paused')
end
if rate ~= '-' and rate ~= 'none' and not (string.find(rate, '^[1-9]%d* [1-9]%d* [1-9]%d*$')
  and #rate <= 50) then
  return redis.error_reply('BADARG group_configure rate')
end

-- Removes first, because a full server refuses what adds before.
redis.call('HDEL', meta, '')
local grp = group.read(name)
if concurrency ~= '-' then grp.set = tonumber(concurrency) end
if paused ~= '-' then grp.paused = tonumber(paused) end
if rate == 'none' then
  group.share_rate(grp)
elseif rate ~= '-' and (grp.is_shared or rate ~= grp.rate) then
  group.set_rate(grp, rate, false)
end
if grp.set > 0 or grp.paused == 1 or (grp.rate and not grp.is_shared) then
  redis.call('HSETNX', meta, 'groups', 1)
end
group.touched[name] = grp
local turn = group.turns()
if turn then wakeup.due(turn) end
return {'ok'}
