-- What `empty` has set aside, deleted in bounded pieces.
local sweep = {}

-- Deletes up to `limit` jobs; true while some are left.
function sweep.some(meta, sets, jobs, run, results, errors, limit)
  for i = 1, #sets do
    local popped = redis.call('ZPOPMIN', sets[i], limit)
    if #popped > 0 then
      local ids = {}
      for j = 1, #popped, 2 do ids[#ids + 1] = popped[j] end
      redis.call('HDEL', jobs, unpack(ids))
      redis.call('HDEL', run, unpack(ids))
      redis.call('HDEL', results, unpack(ids))
      redis.call('HDEL', errors, unpack(ids))
      limit = limit - #ids
      if limit <= 0 then return true end
    end
  end
  redis.call('HDEL', meta, 'trash')
  return false
end

-- Is this id among what was set aside? If so it is as good as deleted: take it out.
function sweep.take(sets, id)
  for i = 1, #sets do
    if redis.call('ZREM', sets[i], id) == 1 then return true end
  end
  return false
end

return sweep
