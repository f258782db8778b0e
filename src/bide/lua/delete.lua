-- delete: remove every trace of jobs that no worker holds.
-- @key   meta       reads whether someone listens
-- @key   due        removes
-- @key   jobs       removes
-- @key   run        removes
-- @key   results    removes
-- @key   notes      removes
-- @key   terms      removes
-- @key   unique     frees the keys of what is deleted
-- @key   active     looks
-- @key   completed  removes
-- @key   failed     removes
-- @key   cancelled  removes
-- @key   events     tells listeners
-- @rest  id
-- @reply ok, then per job: ok | active | gone
-- @include clock find retain event hold

local reply, done = {'ok'}, {}
for i = rest, #ARGV do
  local id = ARGV[i]
  local word = 'ok'
  if redis.call('ZSCORE', active, id) then
    word = 'active'
  elseif not find.take_due(due, id) and redis.call('ZREM', completed, id) == 0
    and redis.call('ZREM', failed, id) == 0 and redis.call('ZREM', cancelled, id) == 0 then
    word = 'gone'
  else
    done[#done + 1] = id
  end
  reply[#reply + 1] = word
end
if #done == 0 then return reply end
hold.free(unique, terms, done)
retain.forget({jobs, run, results, notes, terms}, done)
local book = event.book(meta, clock.now(meta))
if book then
  for i = 1, #done do event.add(book, 'deleted', 'delete', done[i], '-', 0, 0, '') end
  event.write(meta, events, book)
end
return reply
