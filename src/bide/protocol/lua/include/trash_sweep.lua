-- Deletes the jobs that `purge` has set aside, in limited steps.
local trash_sweep = {}

-- Deletes up to `limit` jobs; true while some are left.
function trash_sweep.some(limit, has_edges)
  for i = 1, #trash do
    local popped = redis.call('ZPOPMIN', trash[i], limit)
    if #popped > 0 then
      local ids = {}
      for j = 1, #popped, 2 do ids[#ids + 1] = popped[j] end
      if i == group.GROUPED then -- groups of which nothing is left are forgotten
        for _, line in ipairs(redis.call('HMGET', terms, unpack(ids))) do group.touch(line) end
        group.turns()
      end
      finish.remove(has_edges, ids)
      limit = limit - #ids
      if limit <= 0 then return true end
    end
  end
  redis.call('HDEL', meta, 'trash')
  return false
end

return trash_sweep
