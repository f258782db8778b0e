-- The stored run records.
local record_store = {}

local LEVELS, ALONE, UNSERVED = 10, 11, 12

-- The fields of a job's record; nil where it has none that can be read.
function record_store.read(id) return run_record.parse(redis.call('HGET', run, id)) end

function record_store.write(id, rec)
  redis.call('HSET', run, id, run_record.format(rec.head, rec))
end

-- The due set of a job outside groups, as its record has it.
function record_store.level(rec) return rec.strikes >= 2 and ALONE or LEVELS - rec.priority end

-- To which due set a job belongs that is moved. Where its caller has said when it is due, the wait
-- of a job that a worker without its task returned starts again.
function record_store.moved(id, level, us)
  if level <= LEVELS then return level end
  local rec = record_store.read(id)
  if us and rec and rec.missing then
    rec.first, rec.missing = nil, us
    record_store.write(id, rec)
  end
  if level ~= UNSERVED then return level end
  return rec and record_store.level(rec) or LEVELS / 2
end

return record_store
