-- timeline: count the due jobs, and the jobs that have ended, in intervals of one length.
-- @arg   from       text     +N or -N microseconds from now, or =N; moved back to a whole step
-- @arg   step_us    integer  how long a stretch is
-- @arg   count      integer  how many stretches, 240 at most
-- @reply ok now from overdue later, then per stretch: due completed failed

local sign, digits = string.match(from, '^([+=-])(%d+)$')
if not sign or #digits > 16 then return redis.error_reply('BADARG timeline from') end
if step_us < 1 then return redis.error_reply('BADARG timeline step_us') end
if count < 1 or count > 240 then return redis.error_reply('BADARG timeline count') end

local first = tonumber(digits)
if sign == '+' then first = now + first elseif sign == '-' then first = now - first end
first = math.max(0, first - first % step_us)

local used = {}
for i = 1, #due do
  if redis.call('ZCARD', due[i]) > 0 then used[#used + 1] = due[i] end
end
local function total(sets, low, high)
  local sum = 0
  for i = 1, #sets do sum = sum + redis.call('ZCOUNT', sets[i], low, high) end
  return sum
end

local last = string.format('%.0f', first + count * step_us)
local reply = {'ok', now, first, total(used, '-inf', now), total(used, last, '+inf')}
local ended = {{completed}, {failed}}
for i = 0, count - 1 do
  local start = first + i * step_us
  local low, high = string.format('%.0f', start), string.format('(%.0f', start + step_us)
  reply[#reply + 1] = total(used, low, high)
  for j = 1, 2 do
    reply[#reply + 1] = start <= now and total(ended[j], low, high) or 0
  end
end
return reply
