-- configure: set the retention of finished jobs, or mark a delay queue.
-- @arg   bounds     text     count and age in µs of the kept completed, failed and cancelled jobs
-- @arg   kind       text     of a delay queue: `data` where items are to come, else `maybe`; or `-`
-- @arg   results    integer  maximum bytes of kept results
-- @reply ok kind

local MARK, SAMPLE = 3, 5

if not string.find(bounds, '^%d+ %d+ %d+ %d+ %d+ %d+$') then
  return redis.error_reply('BADARG configure bounds')
end
local known = redis.call('HMGET', meta, 'kind', 'retention')
if kind ~= '-' then
  -- A queue is one of data by its first push, or where what it has shows that it is one.
  if known[1] then return {'ok', known[1]} end
  local some = redis.call('HRANDFIELD', jobs, SAMPLE)
  if #some > 0 then kind = 'data' end
  for i = 1, #some do
    if string.byte(redis.call('HGET', jobs, some[i])) ~= MARK then kind = 'maybe' end
  end
  if kind ~= 'data' then return {'ok', '-'} end
end
-- Removes first, because a full server refuses what adds before.
redis.call('HDEL', meta, '')
if kind == 'data' then redis.call('HSET', meta, 'kind', kind) end
if kind == '-' or not known[2] then
  redis.call('HSET', meta, 'retention', bounds, 'result_budget', results)
end
return {'ok', kind}
