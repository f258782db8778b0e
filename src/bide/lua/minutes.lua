-- minutes: how late jobs began and how long they ran, of some minutes.
-- @key   meta     reads the clock's offset under test
-- @key   minutes  reads
-- @arg   first    integer  how many minutes ago the first began; 0 for this one
-- @arg   count    integer  how many minutes, from the first on
-- @reply ok now minute, then per minute a line, or nothing
-- @include clock

local MOST, MINUTE = 1500, 60000000
local now = clock.now(meta)
local this = math.floor(now / MINUTE)
local reply = {'ok', now, this - first}
if count < 1 or count > MOST then return redis.error_reply('BADARG minutes count') end
local names = {}
for i = 0, count - 1 do names[#names + 1] = string.format('%.0f', this - first + i) end
for _, line in ipairs(redis.call('HMGET', minutes, unpack(names))) do reply[#reply + 1] = line end
return reply
