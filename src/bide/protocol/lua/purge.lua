-- purge: set all delayed, waiting and blocked jobs aside, then delete them in bounded pieces.
-- @key   meta     notes that a trash is left, reads whether someone listens
-- @key   due      renamed
-- @key   blocked  renamed
-- @key   edges    notes that what others wait for was removed
-- @key   jobs     sweeps
-- @key   run      sweeps
-- @key   results  sweeps
-- @key   notes    sweeps
-- @key   terms    sweeps
-- @key   order    removed
-- @key   held     looks
-- @key   groups   forgets those of which nothing is left
-- @key   turns    removed
-- @key   unique   frees the keys of what is deleted
-- @key   trash    receives the renamed sets, sweeps
-- @key   events   tells listeners
-- @arg   begin    text     names this emptying, to set aside; - to go on deleting
-- @arg   limit    integer  how many jobs to delete in this call
-- @reply ok aside more    how many this emptying has set aside; whether to go on
-- @reply busy             an earlier trash is left: begin again
-- @include clock trash_sweep event group dedup_keys deps

-- A trash that a dead caller left is swept first; claims sweep it too.
local now = clock.now(meta)
local has_edges = redis.call('HEXISTS', meta, 'edges') == 1
local sets = {due = due, terms = terms, order = order, held = held, groups = groups, turns = turns}
local function swept()
  local stores = {jobs, run, results, notes, terms}
  return not trash_sweep.some(meta, trash, stores, limit, function(ids, i)
    if i == group.GROUPED then group.forget(sets, ids, now) end
    dedup_keys.free(unique, terms, ids)
    if has_edges then deps.removed(edges, ids) end
  end)
end
if begin == '-' then return {'ok', 0, swept() and 0 or 1} end
local left = redis.call('HEXISTS', meta, 'trash')
local name, count = string.match(redis.call('HGET', meta, 'emptied') or '', '^(%S+) (%d+)$')
if name == begin then return {'ok', tonumber(count), left} end -- a repeat
if left == 1 and not swept() then return {'busy'} end
local aside = 0
local function set_aside(from, to)
  local size = redis.call('ZCARD', from)
  if size > 0 then
    redis.call('RENAME', from, to)
    aside = aside + size
  end
end
for i = 1, #due do set_aside(due[i], trash[i]) end
set_aside(blocked, trash[#trash]) -- behind the due sets
if aside == 0 then return {'ok', 0, 0} end
redis.call('UNLINK', order, turns) -- the server frees them beside its work
redis.call('HSET', meta, 'trash', 1, 'emptied', begin .. ' ' .. aside)
local book = event.book(meta, now)
if book then
  event.add(book, 'emptied', 'empty', '-', '-', 0, 0, string.format('%d', aside))
  event.write(meta, events, book)
end
return {'ok', aside, 1}
