-- Jobs that come in, `id when priority body` each and maybe more: what all of them must be, and
-- which of them are there already.
local new_jobs = {}

local LONGEST = 128 -- bytes of an id
-- No white space, control characters or braces, as `[^%s%c{}]` says elsewhere. Each job pays for
-- this here, by the character: so what ids are mostly made of stands first.
local NAME = '^[!-z|~\128-\255]+$'

-- Whether all of these arguments can be meant; `width` of them are one job.
function new_jobs.valid(due_time, args, first, width)
  for i = first, #args, width do
    local id, priority = args[i], tonumber(args[i + 2])
    if #id > LONGEST or not string.find(id, NAME) or not due_time.valid(args[i + 1])
      or not priority or priority < 0 or priority > 9 or priority % 1 ~= 0 then
      return false
    end
  end
  return true
end

-- Stores the bodies of those that are new; a table with the index of each of these as a key.
-- `stores`: the other hashes in which a trashed namesake may have left something. `apart`: a table
-- with the indices of those that are stored elsewhere.
function new_jobs.store(meta, jobs, trash, stores, read_budget, trash_sweep, args, first, width,
  apart)
  local known, is_new, large = {}, {}, false
  for i = first, #args, width do
    if not (apart and apart[i]) then
      local id, body = args[i], args[i + 3]
      local added = redis.call('HSETNX', jobs, id, body) == 1
      if added then is_new[i] = true else known[#known + 1] = id end
      if #body > read_budget.LARGE then large = true end
    end
  end
  if large then redis.call('HSETNX', meta, 'large', 1) end
  if #known == 0 or redis.call('HEXISTS', meta, 'trash') == 0 then return is_new end
  -- A namesake among what `purge` has set aside is as good as deleted.
  local freed = trash_sweep.take(trash, stores, known)
  for i = first, #args, width do
    local id = args[i]
    if freed[id] and not is_new[i] and not (apart and apart[i]) then
      freed[id] = nil
      is_new[i] = true
      redis.call('HSET', jobs, id, args[i + 3])
    end
  end
  return is_new
end

return new_jobs
