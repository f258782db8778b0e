-- fsck_edges: check a part of the dependencies; repair what would block a job without end.

local FORMS = {'^>([^%s{}]+) (%S+)$', '^<([^%s{}]+) (%S+)$', '^!([^%s{}]+) ([CFX])$',
  '^=([^%s{}]+) ([^%s{}]+)$', '^@({%S+}%S+) (%S+) [CFX]$', '^%?([^%s{}]+) ({%S+}%S+)$'}

local wakes = false
local function tell(id, says, fix) return fsck.tell('edges', id, says, fix) end

local function is_blocked(id) return redis.call('ZSCORE', blocked, id) end

-- What `purge` has set aside: it is seen to when it is swept.
local function is_aside(id)
  return redis.call('HEXISTS', jobs, id) == 1 and not deps.states({id})[id]
end

-- Whether the parent has ended without a mark that has its children told; and how it has ended.
local function is_silent(parent)
  if deps_edges.is_marked(parent) then return false end
  if is_aside(parent) then return false, 'X' end
  local state = deps.states({parent})[parent] or 'X'
  return state ~= 'live', state
end

local function mark(parent, state)
  redis.call('ZADD', edges, 0, '!' .. parent .. ' ' .. state)
  wakes = true
end

local function remove(member) redis.call('ZREM', edges, member) end

local function check_child(child, parent, member)
  local is_remote = deps_edges.is_remote(parent)
  if not is_blocked(child) then
    if is_remote or not redis.call('ZSCORE', edges, '>' .. parent .. ' ' .. child) then
      local what = 'waits for ' .. parent .. ', and is not blocked'
      if not is_aside(child) and tell(child, what, 'waits no more') then
        remove(member)
      end
    end
  elseif is_remote then
    if not redis.call('ZSCORE', expiring, child)
      and tell(child, 'waits for ' .. parent .. ', and is never looked at', 'is looked at now') then
      redis.call('ZADD', expiring, now, child)
      wakes = true
    end
  elseif not redis.call('ZSCORE', edges, '>' .. parent .. ' ' .. child)
    and tell(child, 'waits for ' .. parent .. ', which would not tell it', 'is told') then
    redis.call('ZADD', edges, 0, '>' .. parent .. ' ' .. child)
    local silent, state = is_silent(parent)
    if silent then mark(parent, state) end
  end
end

local function check_parent(parent, child, member)
  if not deps_edges.is_remote(child) and is_blocked(child)
    and not redis.call('ZSCORE', edges, '<' .. child .. ' ' .. parent) then
    if tell(child, 'is told by ' .. parent .. ', and does not wait for it', 'is told no more') then
      remove(member)
    end
    return
  end
  local silent, state = is_silent(parent)
  if silent and tell(parent, 'has ended, and has not told ' .. child, 'tells it') then
    mark(parent, state)
  end
end

local function check(member, score)
  local form, a, b
  for at, pattern in ipairs(FORMS) do
    a, b = string.match(member, pattern)
    if a then
      form = at
      break
    end
  end
  if not form then
    if tell(member, 'cannot be read', 'is removed') then remove(member) end
  elseif score ~= '0' then
    if tell(a, 'stands in edges with a score', 'stands there without') then
      redis.call('ZADD', edges, 0, member)
    end
  elseif form == 1 then
    check_parent(a, b, member)
  elseif form == 2 then
    check_child(a, b, member)
  elseif form == 4 and redis.call('HEXISTS', jobs, a) == 0 and not deps_edges.is_marked(a) then
    if tell(a, 'is kept for ' .. b .. ', and does not exist', 'is kept no more') then
      remove(member)
    end
  end
end

fsck.zset(edges, check)
if wakes then wakeup.push('-') end
return fsck.reply()
