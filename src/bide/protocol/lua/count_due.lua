-- count_due: count the delayed jobs that are due within given times, over all priorities.
-- @rest  within
-- @reply ok now, then how many for each

-- within: microseconds from now; 32 of them at most.
if #ARGV - rest >= 32 then return redis.error_reply('BADARG count_due rest') end
for i = rest, #ARGV do
  if not string.find(ARGV[i], '^%d+$') or #ARGV[i] > 16 then
    return redis.error_reply('BADARG count_due rest')
  end
end
local reply = {'ok', now}
for i = rest, #ARGV do
  local last, count = string.format('%.0f', now + tonumber(ARGV[i])), 0
  for k = 1, #due do
    count = count + redis.call('ZCOUNT', due[k], string.format('(%.0f', now), last)
  end
  reply[#reply + 1] = count
end
return reply
