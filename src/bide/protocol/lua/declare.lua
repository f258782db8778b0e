-- declare: apply the settings that a worker's program declares, except those that people changed.
-- @arg   rate        text  as `limit` takes it; `keep` if the program does not declare it
-- @arg   concurrency  text  likewise
-- @arg   group_rate  text  likewise
-- @arg   kept        text  the bounds and the results of `configure`, or `keep`
-- @arg   starts      integer  1 when the worker starts, 0 afterwards
-- @reply ok now      then the names of the settings that stay, because people configured them
-- @reply other now   nothing changed: a live worker that started later declares others

-- For each setting, `meta` has what was declared last. A setting with another value was changed by
-- `queue.configure`, and stays. Workers declare again with each heartbeat. So the settings of old
-- code that ran last in a deployment are replaced when none of its workers lives any more.
local LEASE = 30000000 -- three heartbeats

local is_valid, what = queue_limits.are_valid(rate, concurrency, group_rate)
if not is_valid then return redis.error_reply('BADARG declare ' .. what) end
if kept ~= 'keep' and not string.find(kept, '^%d+ %d+ %d+ %d+ %d+ %d+ %d+$') then
  return redis.error_reply('BADARG declare retention')
end

local NONE = {'0 0 0', '0', '0 0 0', ''} -- as `meta` says that no limit was declared
local FIELDS = {'declared_rate', 'declared_concurrency', 'declared_group_rate',
  'declared_retention'}
local names = {'rate', 'concurrency', 'group_rate', 'retention'}
local given = {rate, concurrency, group_rate, kept}
local set = redis.call('HMGET', meta, 'rate', 'concurrency', 'group_rate', 'retention',
  'result_budget')
local said = redis.call('HMGET', meta, 'declared_rate', 'declared_concurrency',
  'declared_group_rate', 'declared_retention', 'declared_until')
if set[4] then set[4] = set[4] .. ' ' .. (set[5] or '') end
local is_other, is_new = false, {}
for i = 1, 4 do
  is_new[i] = not said[i]
  set[i], said[i] = set[i] or NONE[i], said[i] or NONE[i]
  if given[i] == 'none' then given[i] = NONE[i] end
  is_other = is_other or given[i] ~= 'keep' and given[i] ~= said[i]
end
if starts == 0 and is_other and (tonumber(said[5]) or 0) > now then return {'other', now} end

-- Removes first, because a full server refuses what adds before.
redis.call('HDEL', meta, '')
local reply, changes = {'ok', now}, {}
for i = 1, 4 do
  if given[i] ~= 'keep' then
    if set[i] == said[i] then
      changes[i] = given[i] ~= set[i]
    elseif set[i] ~= given[i] then
      reply[#reply + 1] = names[i]
    end
    if given[i] ~= said[i] or is_new[i] then redis.call('HSET', meta, FIELDS[i], given[i]) end
  end
end
if changes[1] or changes[2] or changes[3] then
  queue_limits.set(changes[1] and rate or 'keep', changes[2] and concurrency or 'keep',
    changes[3] and group_rate or 'keep')
end
if changes[4] then
  local bounds, results = string.match(kept, '^(.+) (%d+)$')
  redis.call('HSET', meta, 'retention', bounds, 'result_budget', results)
end
redis.call('HSET', meta, 'declared_until', string.format('%.0f', now + LEASE))
return reply
