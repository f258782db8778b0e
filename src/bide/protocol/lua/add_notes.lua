-- add_notes: add log lines and progress to the notes of running jobs.
-- @rest  id token kind text
-- @reply ok now, then per note: ok | lost (the job is gone, or another has claimed it since)

-- kind: L (a log line) | P (progress); text: JSON, without line breaks
for i = rest, #ARGV, 4 do
  if not string.find(ARGV[i + 2], '^[LP]$') or string.find(ARGV[i + 3], '\n', 1, true) then
    return redis.error_reply('BADARG add_notes rest')
  end
end

local reply, ids, lines, latest = {'ok', now}, {}, {}, {}
for i = rest, #ARGV, 4 do
  local id = ARGV[i]
  local line = redis.call('HGET', run, id)
  local mine = line and run_record.token(line) == ARGV[i + 1]
  if mine then
    if not lines[id] then
      ids[#ids + 1] = id
      lines[id] = {}
    end
    local add = lines[id]
    add[#add + 1] = string.format('%s %.0f ', ARGV[i + 2], now) .. ARGV[i + 3]
    if ARGV[i + 2] == 'P' then latest[id] = {line, ARGV[i + 3]} end
  end
  reply[#reply + 1] = mine and 'ok' or 'lost'
end
if next(latest) then event.open() end
for _, id in ipairs(ids) do
  local old = redis.call('HGET', notes, id)
  redis.call('HSET', notes, id, history.add(old, table.concat(lines[id], '\n')))
  if book and latest[id] then
    local line, progress = unpack(latest[id])
    -- There is no event for progress that is noted already: it is a repeat after a lost reply.
    if not (old and string.find(old .. '\n', ' ' .. progress .. '\n', 1, true)) then
      local rec = run_record.parse(line) or run_record.unknown('')
      event.add('progress', 'note', id, rec.worker, rec.attempt, 0, progress)
    end
  end
end
event.write()
return reply
