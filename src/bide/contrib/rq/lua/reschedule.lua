-- Set when a delayed job is due.
-- KEYS: the job, the sorted set of delayed jobs
-- ARGV: the job's id; the queue's name; "in" or "at"; microseconds from now or since the epoch;
--       the channel of wake-up messages; the gate's name; what the usual sorted sets begin with
-- Reply: 1, or 0 if it was not delayed
local job, delayed = KEYS[1], KEYS[2]
local id, name, from, us, channel = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local gate, delays = ARGV[6], ARGV[7]
if not still_delayed(job, id, name, gate, delayed, delays) then
  return 0
end
local now = clock()
delay_until(delayed, channel, id, from == 'in' and now + us or us, now)
return 1
