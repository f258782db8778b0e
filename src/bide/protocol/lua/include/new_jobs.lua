-- New jobs, `id when priority body` each and maybe more: whether they are valid and new.
local new_jobs = {}

local LONGEST = 128 -- bytes of an id
-- As `[^%s%c{}]`; each job pays for this by the character, so what is most usual stands first.
local NAME = '^[!-z|~\128-\255]+$'

-- Whether the arguments are valid; `width` of them are one job.
function new_jobs.valid(width)
  for i = rest, #ARGV, width do
    local id, priority = ARGV[i], tonumber(ARGV[i + 2])
    if #id > LONGEST or not string.find(id, NAME) or not due_time.valid(ARGV[i + 1])
      or not priority or priority < 0 or priority > 9 or priority % 1 ~= 0 then
      return false
    end
  end
  return true
end

-- Removes what `purge` has set aside of these jobs: it is as good as deleted. Their ids, as keys.
function new_jobs.untrash(ids)
  local taken = {}
  if redis.call('HEXISTS', meta, 'trash') == 0 then return taken end
  for i = 1, #trash do
    local scores = redis.call('ZMSCORE', trash[i], unpack(ids))
    local found = {}
    for j = 1, #ids do
      if scores[j] then
        found[#found + 1] = ids[j]
        taken[ids[j]] = true
      end
    end
    if #found > 0 then
      redis.call('ZREM', trash[i], unpack(found))
      for _, hash in ipairs({run, notes, terms}) do redis.call('HDEL', hash, unpack(found)) end
    end
  end
  return taken
end

-- Stores the bodies of those that are new; a table with the index of each of these as a key.
-- `apart`: a table with the indices of those that are stored elsewhere.
function new_jobs.store(width, apart)
  local known, is_new, large = {}, {}, false
  for i = rest, #ARGV, width do
    if not (apart and apart[i]) then
      local id, body = ARGV[i], ARGV[i + 3]
      local added = redis.call('HSETNX', jobs, id, body) == 1
      if added then is_new[i] = true else known[#known + 1] = id end
      if #body > read_budget.LARGE then large = true end
    end
  end
  if large then redis.call('HSETNX', meta, 'large', 1) end
  local freed = #known > 0 and new_jobs.untrash(known)
  if not freed or not next(freed) then return is_new end
  for i = rest, #ARGV, width do
    local id = ARGV[i]
    if freed[id] and not is_new[i] and not (apart and apart[i]) then
      freed[id] = nil
      is_new[i] = true
      redis.call('HSET', jobs, id, ARGV[i + 3])
    end
  end
  return is_new
end

return new_jobs
