-- extend: renew the leases of jobs still held under these tokens.
-- @arg   lease_us  integer  how long from now
-- @rest  id token
-- @last  late    how late jobs have started since the last report, for `latency.report`
-- @reply ok now, then per job: ok | asked (renewed, and asked to stop) | lost | gone
-- @include clock run_record

local ids = {}
for i = rest, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
if #ids == 0 then return redis.error_reply('BADARG extend rest') end
if not latency.valid(late) then return redis.error_reply('BADARG extend late') end

local lease_score = string.format('%.0f', now + lease_us) -- once, as `due_time.us` says
local lines = redis.call('HMGET', run, unpack(ids))
local leases = redis.call('ZMSCORE', active, unpack(ids))
local asks = redis.call('EXISTS', asked) == 1 and redis.call('ZMSCORE', asked, unpack(ids))
local reply, mine, renewed = {'ok', now}, {}, {}
for k, id in ipairs(ids) do
  local word = 'lost'
  if not lines[k] then
    word = 'gone'
  elseif leases[k] and run_record.stamp(lines[k]) == ARGV[rest + 2 * k - 1] .. '-' then
    word = asks and asks[k] and 'asked' or 'ok'
    mine[#mine + 1] = id
    renewed[#renewed + 1] = lease_score
    renewed[#renewed + 1] = id
  end
  reply[k + 2] = word
end
if #mine > 0 then
  -- Removed and added again, because a full server refuses a ZADD that nothing was removed before.
  redis.call('ZREM', active, unpack(mine))
  redis.call('ZADD', active, unpack(renewed))
  clock.observe(tonumber(redis.call('HGET', meta, 'clock')), lease_us)
end
latency.report(late)
return reply
