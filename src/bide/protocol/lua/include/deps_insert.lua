-- New jobs with parents: the checks before any write, and the stored dependencies.
local deps_insert = {}

local BUDGET = 200

-- What a job waits for: ids of this queue, `{queue}id` of others, `{}` for more that is to come.
function deps_insert.is_valid(parents)
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
function deps_insert.add_local(parents, list, known)
  for parent in string.gmatch(parents, '%S+') do
    if not deps_edges.is_remote(parent) and not known[parent] then
      known[parent] = true
      list[#list + 1] = parent
    end
  end
end

-- Jobs that were removed may have left something to these names. Sees to some of it; true if that
-- was so, and the caller must come again.
function deps_insert.is_busy(children, parents)
  local marked, is_busy = {}, false
  for _, ids in ipairs({children, parents}) do
    for _, id in ipairs(ids) do
      if deps_edges.is_marked(id) then marked[#marked + 1] = id end
    end
  end
  if #marked > 0 then deps.tell(marked, BUDGET) end
  for _, id in ipairs(children) do
    -- One that `purge` has set aside has a body yet, and is not blocked.
    if deps_edges.waits(id) and not redis.call('ZSCORE', blocked, id)
      and not deps_edges.forget(id) then
      is_busy = true
    end
  end
  return is_busy or #marked > 0
end

-- Notes what a child waits for. `states`: of the parents of this queue. Returns 'wait', or what
-- became clear: 'met', 'run' or 'cancel', and in this case because of which parent.
function deps_insert.note(child, line, parents, states)
  local adds, word = {}, 'met'
  local function add(member)
    adds[#adds + 1] = 0
    adds[#adds + 1] = member
  end
  for parent in string.gmatch(parents, '%S+') do
    if deps_edges.is_remote(parent) then
      word = 'wait'
      add('<' .. child .. ' ' .. parent)
    elseif states[parent] == 'live' then
      word = 'wait'
      add('<' .. child .. ' ' .. parent)
      add('>' .. parent .. ' ' .. child)
    else
      local effect = deps.effect(line, states[parent] or 'X')
      if effect ~= 'met' then return effect, parent end
      add('=' .. parent .. ' ' .. child)
    end
  end
  for i = 1, #adds, 500 do
    redis.call('ZADD', edges, unpack(adds, i, math.min(i + 499, #adds)))
  end
  return word
end

-- When to look at a job that waits: its placing may be given up; once it is placed, it may expire,
-- or nothing may be heard of another queue. So neither is taken for the other.
function deps_insert.look_at(line, id, parents)
  if not deps_edges.is_open(id) then return now + deps.WAIT_US end
  local at = constraints.begins_by(line)
  if string.find(parents, '{', 1, true) then at = math.min(at or math.huge, now + deps.ASK_US) end
  return at
end

return deps_insert
