-- delete: remove every trace of jobs that no worker holds.
-- @key   meta       reads whether someone listens
-- @key   due        removes
-- @key   jobs       removes
-- @key   run        removes
-- @key   results    removes
-- @key   notes      removes
-- @key   terms      reads whose groups they are, removes
-- @key   order      removes
-- @key   held       looks
-- @key   groups     reads and notes groups
-- @key   turns      moves groups' markers
-- @key   unique     frees the keys of what is deleted
-- @key   active     looks
-- @key   completed  removes
-- @key   failed     removes
-- @key   cancelled  removes
-- @key   events     tells listeners
-- @rest  id
-- @reply ok, then per job: ok | active | gone
-- @include clock find retain event group hold

local sets = {due = due, terms = terms, order = order, held = held, groups = groups, turns = turns}
local reply, done, touched = {'ok'}, {}, {}
for i = rest, #ARGV do
  local id = ARGV[i]
  local word = 'ok'
  if redis.call('ZSCORE', active, id) then
    word = 'active'
  else
    local level, at = find.take_due(due, id)
    if level == group.GROUPED then group.leave(sets, touched, at, id) end
    if level or redis.call('ZREM', completed, id) == 1 or redis.call('ZREM', failed, id) == 1
      or redis.call('ZREM', cancelled, id) == 1 then
      done[#done + 1] = id
    else
      word = 'gone'
    end
  end
  reply[#reply + 1] = word
end
if #done == 0 then return reply end
local now = clock.now(meta)
group.turns(sets, touched, now)
hold.free(unique, terms, done)
retain.forget({jobs, run, results, notes, terms}, done)
local book = event.book(meta, now)
if book then
  for i = 1, #done do event.add(book, 'deleted', 'delete', done[i], '-', 0, 0, '') end
  event.write(meta, events, book)
end
return reply
