-- empty: set all delayed, waiting and blocked jobs aside, then delete them in bounded pieces.
-- @key   meta     notes that a trash is left, reads whether someone listens
-- @key   due      renamed
-- @key   blocked  renamed
-- @key   edges    notes that what others wait for was removed
-- @key   jobs     sweeps
-- @key   run      sweeps
-- @key   results  sweeps
-- @key   notes    sweeps
-- @key   terms    sweeps
-- @key   trash    receives the renamed sets, sweeps
-- @key   events   tells listeners
-- @arg   begin    text     names this emptying, to set aside; - to go on deleting
-- @arg   limit    integer  how many jobs to delete in this call
-- @reply ok aside more    how many this emptying has set aside; whether to go on
-- @reply busy             an earlier trash is left: begin again
-- @include clock sweep event depend

-- A trash that a dead caller left is swept first; claims sweep it too.
local has_edges = redis.call('HEXISTS', meta, 'edges') == 1
local removed
if has_edges then removed = function(ids) depend.removed(edges, ids) end end
local stores = {jobs, run, results, notes, terms}
if begin == '-' then
  return {'ok', 0, sweep.some(meta, trash, stores, limit, removed) and 1 or 0}
end
local left = redis.call('HEXISTS', meta, 'trash')
local name, count = string.match(redis.call('HGET', meta, 'emptied') or '', '^(%S+) (%d+)$')
if name == begin then return {'ok', tonumber(count), left} end -- a repeat
if left == 1 and sweep.some(meta, trash, stores, limit, removed) then
  return {'busy'}
end
local aside = 0
local function set_aside(from, to)
  local size = redis.call('ZCARD', from)
  if size > 0 then
    redis.call('RENAME', from, to)
    aside = aside + size
  end
end
for i = 1, #due do set_aside(due[i], trash[i]) end
set_aside(blocked, trash[#trash])
if aside == 0 then return {'ok', 0, 0} end
redis.call('HSET', meta, 'trash', 1, 'emptied', begin .. ' ' .. aside)
local book = event.book(meta, clock.now(meta))
if book then
  event.add(book, 'emptied', 'empty', '-', '-', 0, 0, string.format('%d', aside))
  event.write(meta, events, book)
end
return {'ok', aside, 1}
