-- fsck_workers: check the reports of workers, and remove invalid ones.

-- A live worker sends its next heartbeat within seconds, so nothing is lost.
local function judge(name, value)
  local form = string.find(name, ' ', 1, true) and '^(%d+)$' or '^(%d+) {'
  local at = string.match(value, form)
  if not at then return 'what it said of itself cannot be read' end
  if not fsck.moment(at, 0, now + fsck.DAY) then
    return 'was seen at a time that lies too far ahead: ' .. at
  end
end

if fsck.is_hash(workers) then fsck.prune_hash('workers', workers, judge) end
return fsck.reply()
