-- Jobs that wait for others. `edges` holds what waits for what; each member has the score 0 and one
-- of these forms, so that all that concerns one job is a range of it:
--
--   >parent child       the child waits for this job's end
--   <child parent       the same, from the child's side
--   <child {}           not all that the child waits for is known yet: it is being placed
--   !parent outcome     the parent has ended, and not all of its children have been told; or it was
--                       removed, and not all that is here of it is gone
--   =parent child       the parent has ended, and is kept while the child has not
--   @child parent outcome    of a child of another queue: to be told there
--   ?child parent            of a parent of another queue: to be asked there
--
-- A job of another queue is `{queue}id`. outcome: C for completed, F for failed, X for cancelled,
-- which a job that was removed is, too.
--
-- A child is freed when no `<` of it is left. What is here of a job that is not blocked (any more)
-- means nothing, and goes with its parents' ends.
local deps_edges = {GATE = '{}', MOST = 1000, forgotten = 0}

-- forgotten: how many parents this call has forgotten; a call that has done `MOST` does no more.

local SOME, MOST_SHOWN = 100, 20

-- Up to `count` members that begin so.
function deps_edges.range(mark, id, count)
  local begin = mark .. id .. ' '
  return redis.call('ZRANGEBYLEX', edges, '[' .. begin, '(' .. mark .. id .. '!', 'LIMIT', 0, count)
end

function deps_edges.is_marked(id) return #deps_edges.range('!', id, 1) > 0 end

function deps_edges.is_remote(id) return string.byte(id) == 123 end

-- Does the job wait for anything yet?
function deps_edges.waits(id) return #deps_edges.range('<', id, 1) > 0 end

-- How many jobs it waits for, and the ids of the first.
function deps_edges.awaited(id)
  local found = deps_edges.range('<', id, MOST_SHOWN)
  local reply = {redis.call('ZLEXCOUNT', edges, '[<' .. id .. ' ', '(<' .. id .. '!')}
  for i = 1, #found do reply[i + 1] = string.sub(found[i], #id + 3) end
  return reply
end

function deps_edges.is_open(id)
  return not redis.call('ZSCORE', edges, '<' .. id .. ' ' .. deps_edges.GATE)
end

-- What all members lie between that say which jobs of other queues it waits for.
function deps_edges.remote(id) return '[<' .. id .. ' {', '(<' .. id .. ' |' end

-- Forgets what a job waits for, or the first of it; true if nothing is left.
function deps_edges.forget(id)
  local first, last = deps_edges.remote(id) -- of which none may ever be told
  local found = redis.call('ZRANGEBYLEX', edges, first, last, 'LIMIT', 0, SOME)
  if #found < SOME then
    for _, member in ipairs(deps_edges.range('<', id, SOME - #found)) do
      found[#found + 1] = member
    end
  end
  if #found == 0 then return true end
  local members = found
  for i = 1, #found do
    local parent = string.sub(found[i], #id + 3)
    members[#members + 1] = '>' .. parent .. ' ' .. id
    members[#members + 1] = '?' .. id .. ' ' .. parent
  end
  redis.call('ZREM', edges, unpack(members))
  deps_edges.forgotten = deps_edges.forgotten + #members / 3
  return #deps_edges.range('<', id, 1) == 0
end

-- Jobs that have ended and whose children have not all been told.
function deps_edges.marked(count)
  local found = redis.call('ZRANGEBYLEX', edges, '[!', '("', 'LIMIT', 0, count)
  for i = 1, #found do found[i] = string.sub(found[i], 2, -3) end
  return found
end

return deps_edges
