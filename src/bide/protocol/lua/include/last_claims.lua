-- The latest call of each worker: when, its number, and the ids that it took. A call that is
-- repeated after a lost reply has the same number, and so returns the same jobs.
local last_claims = {}

local WORKERS, FORGET_AFTER = 64, 600000000

-- A new worker pays for some that are gone.
local function forget_some()
  if redis.call('HLEN', claims) <= WORKERS then return end
  local sample = redis.call('HRANDFIELD', claims, 16, 'WITHVALUES')
  for i = 1, #sample, 2 do
    if now - (tonumber(string.match(sample[i + 1], '^%d+')) or 0) > FORGET_AFTER then
      redis.call('HDEL', claims, sample[i])
    end
  end
end

-- For a call that is repeated, what it took: of each the id, its record's line, and the record
-- where it still is of this call. For a call that comes late, 'stale'. For a new one, nothing.
function last_claims.repeated(worker, seq)
  local last = redis.call('HGET', claims, worker) or ''
  local then_us, last_seq, ids = string.match(last, '^(%d+) (%d+) (.*)$')
  then_us, last_seq = tonumber(then_us), tonumber(last_seq)
  if not last_seq then return forget_some() end
  if last_seq < seq then return nil end
  if last_seq > seq then return 'stale' end
  local found = {}
  for id in string.gmatch(ids, '%S+') do
    local line = redis.call('HGET', run, id)
    local rec = run_record.parse(line)
    local is_mine = rec and rec.worker == worker and rec.started >= then_us -- later: claimed ahead
    found[#found + 1] = {id = id, line = line, rec = is_mine and rec}
  end
  return found
end

function last_claims.note(worker, seq, ids)
  redis.call('HSET', claims, worker,
    string.format('%.0f %d ', now, seq) .. table.concat(ids, ' '))
end

return last_claims
