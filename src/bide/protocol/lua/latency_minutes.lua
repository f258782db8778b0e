-- latency_minutes: read the lateness and the run times of jobs of some minutes.
-- @arg   first    integer  how many minutes ago the first began; 0 for this one
-- @arg   count    integer  how many minutes, from the first on
-- @reply ok now minute, then per minute a line, or nothing

local MOST = 1500
local begin = tonumber(latency.of(now)) - first
local reply = {'ok', now, begin}
if count < 1 or count > MOST then return redis.error_reply('BADARG latency_minutes count') end
local names = {}
for i = 0, count - 1 do names[#names + 1] = string.format('%.0f', begin + i) end
for _, line in ipairs(redis.call('HMGET', minutes, unpack(names))) do reply[#reply + 1] = line end
local at = tonumber(redis.call('HGET', minutes, 'this'))
if at and at >= begin and at < begin + count then
  local i = 4 + at - begin
  reply[i] = (reply[i] and reply[i] .. ' ' or '') .. latency.under_way()
end
return reply
