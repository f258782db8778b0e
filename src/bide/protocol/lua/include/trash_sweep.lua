-- What `purge` has set aside, deleted in bounded pieces.
local trash_sweep = {}

-- Deletes up to `limit` jobs; true while some are left. `tidy`, if there is one, is told which, and
-- from which of the sets, before anything of them is removed.
function trash_sweep.some(meta, sets, stores, limit, tidy)
  for i = 1, #sets do
    local popped = redis.call('ZPOPMIN', sets[i], limit)
    if #popped > 0 then
      local ids = {}
      for j = 1, #popped, 2 do ids[#ids + 1] = popped[j] end
      if tidy then tidy(ids, i) end
      for k = 1, #stores do redis.call('HDEL', stores[k], unpack(ids)) end
      limit = limit - #ids
      if limit <= 0 then return true end
    end
  end
  redis.call('HDEL', meta, 'trash')
  return false
end

-- Takes those of these jobs that were set aside out of the trash, and what `stores` have of them; a
-- table with their ids as keys.
function trash_sweep.take(sets, stores, ids)
  local taken = {}
  for i = 1, #sets do
    local scores = redis.call('ZMSCORE', sets[i], unpack(ids))
    local found = {}
    for j = 1, #ids do
      if scores[j] then
        found[#found + 1] = ids[j]
        taken[ids[j]] = true
      end
    end
    if #found > 0 then
      redis.call('ZREM', sets[i], unpack(found))
      for k = 1, #stores do redis.call('HDEL', stores[k], unpack(found)) end
    end
  end
  return taken
end

return trash_sweep
