-- Jobs that come in and wait for others: what is asked before anything is written, and what is
-- written of what they wait for.
local placing = {}

local BUDGET = 200

-- What a job waits for: ids of this queue, `{queue}id` of others, `{}` for more that is to come.
function placing.is_valid(parents)
  if string.find(parents, '%c') then return false end
  for word in string.gmatch(parents, '%S+') do
    if #word > 300 or not (string.find(word, '^[^{}]+$') or word == '{}'
      or string.find(word, '^{[^{}]+}[^{}]+$')) then
      return false
    end
  end
  return true
end

-- Adds those of this queue to a list, each once; `known` has as keys what is in the list.
function placing.add_local(depend, parents, list, known)
  for parent in string.gmatch(parents, '%S+') do
    if not depend.is_remote(parent) and not known[parent] then
      known[parent] = true
      list[#list + 1] = parent
    end
  end
end

-- Jobs that were removed may have left something to these names. Sees to some of it; true if that
-- was so, and the caller must come again.
function placing.is_busy(sets, with, depend, children, parents)
  local marked, is_busy = {}, false
  for _, ids in ipairs({children, parents}) do
    for _, id in ipairs(ids) do
      if depend.is_marked(sets.edges, id) then marked[#marked + 1] = id end
    end
  end
  if #marked > 0 then depend.tell(sets, with, marked, BUDGET) end
  for _, id in ipairs(children) do
    -- One that `empty` has set aside has a body yet, and is not blocked.
    if depend.waits(sets.edges, id) and not redis.call('ZSCORE', sets.blocked, id)
      and not depend.forget(sets.edges, id) then
      is_busy = true
    end
  end
  return is_busy or #marked > 0
end

-- Notes what a child waits for. `states`: of the parents of this queue. Returns 'wait', or what
-- became clear: 'met', 'run' or 'cancel', and in this case because of which parent.
function placing.note(sets, with, depend, child, line, parents, states)
  local adds, word = {}, 'met'
  local function add(member)
    adds[#adds + 1] = 0
    adds[#adds + 1] = member
  end
  for parent in string.gmatch(parents, '%S+') do
    if depend.is_remote(parent) then
      word = 'wait'
      add('<' .. child .. ' ' .. parent)
    elseif states[parent] == 'live' then
      word = 'wait'
      add('<' .. child .. ' ' .. parent)
      add('>' .. parent .. ' ' .. child)
    else
      local effect = depend.effect(with.term, line, states[parent] or 'X')
      if effect ~= 'met' then return effect, parent end
      add('=' .. parent .. ' ' .. child)
    end
  end
  for i = 1, #adds, 500 do
    redis.call('ZADD', sets.edges, unpack(adds, i, math.min(i + 499, #adds)))
  end
  return word
end

-- When to look at a job that waits: its placing may be given up; else it may expire, or nothing may
-- be heard of another queue. Whether one that is being placed has expired is seen once that is
-- done, so that nobody takes the one for the other.
function placing.look_at(depend, term, line, edges, id, parents, now)
  if not depend.is_open(edges, id) then return now + depend.GATE_US end
  local at = term.begins_by(line)
  if string.find(parents, '{', 1, true) then at = math.min(at or math.huge, now + depend.ASK_US) end
  return at
end

return placing
