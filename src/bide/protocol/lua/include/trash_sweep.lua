-- Deletes the jobs that `purge` has set aside, in limited steps.
local trash_sweep = {}

local PIECE = 10 -- where jobs may wait for many others each

-- Deletes up to `limit` jobs; true while some are left.
function trash_sweep.some(limit, has_edges)
  local i = 1
  while trash[i] do
    local popped = redis.call('ZPOPMIN', trash[i], has_edges and math.min(limit, PIECE) or limit)
    if #popped == 0 then
      i = i + 1
    else
      local ids = {}
      for j = 1, #popped, 2 do ids[#ids + 1] = popped[j] end
      if i == group.GROUPED then -- groups of which nothing is left are forgotten
        for _, line in ipairs(redis.call('HMGET', terms, unpack(ids))) do group.touch(line) end
        group.turns()
      end
      finish.remove(has_edges, ids)
      limit = limit - #ids
      if limit <= 0 or deps_edges.forgotten >= deps_edges.MOST then return true end
    end
  end
  redis.call('HDEL', meta, 'trash')
  return false
end

return trash_sweep
