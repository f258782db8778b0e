-- Set when a delayed job is due.
-- KEYS: the job, the sorted set of delayed jobs
-- ARGV: the job's id; the queue's name; "in" or "at"; microseconds from now or since the epoch;
--       the channel of hints; the gate's name
-- Reply: 1, or 0 if it was not delayed
local job, delayed = KEYS[1], KEYS[2]
local id, name, from, us, channel = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local gate = ARGV[6]
if not redis.call('ZSCORE', delayed, id) or not is_delayed(judged(job), name, gate) then
  return 0
end
if from == 'in' then
  us = clock() + us
end
delay_until(delayed, channel, id, seconds(us))
return 1
