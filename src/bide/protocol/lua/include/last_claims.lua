-- What each worker last took: when, the number of that call, and the ids. A call that is repeated
-- after a lost reply carries the same number, and so finds what it did.
local last_claims = {}

local WORKERS, FORGET_AFTER = 64, 600000000

-- When, the number, and the ids with spaces between them; nothing for a worker that is not known.
function last_claims.read(claims, worker)
  local last = redis.call('HGET', claims, worker)
  if not last then return nil end
  local then_us, seq, ids = string.match(last, '^(%d+) (%d+) (.*)$')
  return tonumber(then_us), tonumber(seq), ids
end

function last_claims.note(claims, worker, now, seq, ids)
  redis.call('HSET', claims, worker,
    string.format('%.0f %d ', now, seq) .. table.concat(ids, ' '))
end

-- A new worker pays for some that are gone.
function last_claims.forget_some(claims, now)
  if redis.call('HLEN', claims) <= WORKERS then return end
  local sample = redis.call('HRANDFIELD', claims, 16, 'WITHVALUES')
  for i = 1, #sample, 2 do
    if now - (tonumber(string.match(sample[i + 1], '^%d+')) or 0) > FORGET_AFTER then
      redis.call('HDEL', claims, sample[i])
    end
  end
end

return last_claims
