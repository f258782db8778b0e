-- empty: set all delayed and waiting jobs aside, then delete them in bounded pieces.
-- @key   meta     notes that a trash is left
-- @key   due      renamed
-- @key   jobs     sweeps
-- @key   run      sweeps
-- @key   results  sweeps
-- @key   errors   sweeps
-- @key   trash    receives the renamed sets, sweeps
-- @arg   begin    integer  1 on the first call, else 0
-- @arg   limit    integer  how many jobs to delete in this call
-- @reply ok swept more   how many this call set aside; whether to call again
-- @include sweep

-- A trash that a dead caller left is swept first; claims sweep it too.
local aside = 0
if begin == 1 then
  if redis.call('HEXISTS', meta, 'trash') == 1
    and sweep.some(meta, trash, jobs, run, results, errors, limit) then
    return {'ok', -1, 1}
  end
  for i = 1, #due do
    local size = redis.call('ZCARD', due[i])
    if size > 0 then
      redis.call('RENAME', due[i], trash[i])
      aside = aside + size
    end
  end
  if aside > 0 then redis.call('HSET', meta, 'trash', 1) end
  return {'ok', aside, aside > 0 and 1 or 0}
end
return {'ok', 0, sweep.some(meta, trash, jobs, run, results, errors, limit) and 1 or 0}
