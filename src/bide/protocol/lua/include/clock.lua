-- Jumps of the server's clock. All times are integer microseconds since 1970. `meta` has the latest
-- time that the clock has shown, which reveals a jump. After a jump back, the new time applies,
-- deadlines of the old time are dropped, and leases that are too long are shortened when a script
-- reads them. After a jump forward, no lease is reclaimed before its holder had the time of one
-- lease to renew it.
local clock = {TURNS = '(a 0 -'} -- `rewinding` of `meta`: before all markers of groups

local MARK_EVERY, BACK, FORWARD, LONGEST_CALM = 1000000, 2000000, 30000000, 300000000

-- Called after the first removal (a full server refuses what adds before). `seen` is the mark as it
-- was read. Where the clock has jumped: until when no lease is to be reclaimed but those that had
-- ended before the jump, and when that was. Third: whether the mark moved, about once a second.
function clock.observe(seen, lease_us)
  if not seen then
    redis.call('HSET', meta, 'clock', now)
  elseif now - seen > FORWARD then
    local calm_until = now + math.min(lease_us, LONGEST_CALM)
    redis.call('HSET', meta, 'clock', now, 'calm_until', calm_until, 'calm_from', seen,
      'gap_us', now - seen, 'gap_at', now)
    return calm_until, seen
  elseif seen - now > BACK then
    redis.call('DEL', keep, park)
    redis.call('HDEL', meta, 'calm_until', 'calm_from')
    local before = tonumber(redis.call('HGET', meta, 'rewound_until')) or 0
    -- The next claim rewinds the turns of groups, also if another script sees the jump first.
    redis.call('HSET', meta, 'clock', now, 'rewound_until', math.max(seen, before),
      'gap_us', now - seen, 'gap_at', now, 'rewinding', clock.TURNS)
    return 0, 0
  elseif now - seen >= MARK_EVERY then
    redis.call('HSET', meta, 'clock', now)
    return nil, nil, true
  end
end

return clock
