-- empty: set all delayed and waiting jobs aside, then delete them in bounded pieces.
-- @key   meta     notes that a trash is left
-- @key   due      renamed
-- @key   jobs     sweeps
-- @key   run      sweeps
-- @key   results  sweeps
-- @key   notes    sweeps
-- @key   trash    receives the renamed sets, sweeps
-- @arg   begin    text     names this emptying, to set aside; - to go on deleting
-- @arg   limit    integer  how many jobs to delete in this call
-- @reply ok aside more    how many this emptying has set aside; whether to go on
-- @reply busy             an earlier trash is left: begin again
-- @include sweep

-- A trash that a dead caller left is swept first; claims sweep it too.
if begin == '-' then
  return {'ok', 0, sweep.some(meta, trash, {jobs, run, results, notes}, limit) and 1 or 0}
end
local left = redis.call('HEXISTS', meta, 'trash')
local name, count = string.match(redis.call('HGET', meta, 'emptied') or '', '^(%S+) (%d+)$')
if name == begin then return {'ok', tonumber(count), left} end -- a repeat
if left == 1 and sweep.some(meta, trash, {jobs, run, results, notes}, limit) then
  return {'busy'}
end
local aside = 0
for i = 1, #due do
  local size = redis.call('ZCARD', due[i])
  if size > 0 then
    redis.call('RENAME', due[i], trash[i])
    aside = aside + size
  end
end
if aside > 0 then redis.call('HSET', meta, 'trash', 1, 'emptied', begin .. ' ' .. aside) end
return {'ok', aside, aside > 0 and 1 or 0}
