-- place: add jobs that have terms, each due at its own time; an id that exists changes nothing.
-- @key   meta      reads whether a trash is left, and whether someone listens; marks what there is
-- @key   due       adds
-- @key   jobs      adds the bodies
-- @key   terms     adds
-- @key   expiring  adds those that must begin by a time
-- @key   order     adds jobs of groups
-- @key   held      looks
-- @key   groups    reads and notes groups
-- @key   turns     moves groups' markers
-- @key   run       removes what a trashed namesake left
-- @key   notes     removes what a trashed namesake left
-- @key   wake      hints when a job, or an expiry, is the earliest
-- @key   keep      reads the earliest promise
-- @key   trash     removes namesakes
-- @key   events    tells listeners
-- @rest  id when priority body terms
-- @last  wanted    what the caller will wait for behind this: replica | fsync | replica,fsync
-- @reply ok now, then per job: new due | exists 0
-- @reply cannot    what the server lacks for what is wanted; nothing was added
-- @include clock when hint sweep event weigh durable arrive term group

-- `enqueue` is the same for jobs without terms, and quicker. This, too, adds first.
if not arrive.valid(when, ARGV, rest, 5) then return redis.error_reply('BADARG place rest') end
for i = rest + 4, #ARGV, 5 do
  if not term.valid(ARGV[i]) then return redis.error_reply('BADARG place rest') end
end
if not durable.valid(wanted) then return redis.error_reply('BADARG place wanted') end
local lack = durable.lacks(wanted)
if lack then return {'cannot', lack} end

local now = clock.now(meta)
local is_new = arrive.store(meta, jobs, trash, {run, notes, terms}, weigh, sweep, ARGV, rest, 5)
local book = event.book(meta, now)
local reply = {'ok', now}
local sets = {due = due, order = order, held = held, groups = groups, turns = turns}
local touched, has_terms, has_groups = {}, false, false
local earliest
local function by(at)
  if at and (not earliest or at < earliest) then earliest = at end
end

for i = rest, #ARGV, 5 do
  local id, line = ARGV[i], ARGV[i + 4]
  if is_new[i] then
    local at = when.us(ARGV[i + 1], now)
    redis.call('HSET', terms, id, line)
    has_terms = true
    local begins_by = term.begins_by(line, at)
    if begins_by then
      redis.call('ZADD', expiring, begins_by, id)
      by(math.max(begins_by, now))
    end
    local of = group.touch(sets, touched, line)
    if of then -- what its latest job says of a group, holds
      has_groups = true
      of.priority = tonumber(ARGV[i + 2])
      of.asked = tonumber(string.match(' ' .. line, ' n=(%d+)')) or of.asked
      group.put(sets, of, at, id)
    else
      redis.call('ZADD', due[10 - tonumber(ARGV[i + 2])], at, id)
      by(at)
    end
    if book then event.add(book, 'added', 'enqueue', id, '-', 0, at, '') end
    reply[#reply + 1] = 'new'
    reply[#reply + 1] = at
  else
    reply[#reply + 1] = 'exists'
    reply[#reply + 1] = 0
  end
end

if has_groups then
  redis.call('HSETNX', meta, 'groups', 1)
  by(group.turns(sets, touched, now))
end
if has_terms then
  redis.call('HSETNX', meta, 'terms', 1)
elseif wanted ~= '' and rest <= #ARGV then -- as in `enqueue`: a repeat writes, too
  redis.call('HSET', meta, 'repeated', now)
end
if book then event.write(meta, events, book) end
if earliest then hint.due(wake, keep, earliest, now) end
return reply
