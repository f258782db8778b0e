-- Events of jobs for listeners: entries of a stream of limited length, one line of text each.
--
--   kind verb at id worker attempt due data
--
-- id, worker: '-' where there is none; attempt, due: 0. data: the beginning of an error's or of a
-- progress's JSON, or how many jobs were removed. The id of an entry is <opened>-<n>: when the
-- stream was opened, and which entry since then it is. So ids without a hole are entries without a
-- gap, and a reader sees a gap without any state on the server. Nothing is written unless
-- `listened` in `meta` says that someone holds the stream open. Telling must not cost a script its
-- end: hence `pcall`. What could not be written has its number, and shows as a gap.
local event = {}

local COUNT, DATA, LONGEST = 10000, 300, 1024

-- Sets `book`, if someone listens. `listened`: the field of `meta`, where the script has read it.
function event.open(listened)
  if listened == nil then listened = redis.call('HGET', meta, 'listened') end
  local until_us, opened = string.match(listened or '', '^(%d+) (%d+)$')
  if not until_us or tonumber(until_us) <= now then return end
  book = {at = string.format('%.0f', now), until_us = tonumber(until_us), opened = opened}
end

function event.add(kind, verb, id, worker, attempt, due, data)
  book[#book + 1] = string.format('%s %s %s %s %s %d %.0f ', kind, verb, book.at, id, worker,
    attempt, due) .. string.sub(data, 1, DATA)
end

-- The same of several jobs, which no worker holds.
function event.each(kind, verb, ids, due_us)
  for i = 1, book and #ids or 0 do event.add(kind, verb, ids[i], '-', 0, due_us, '') end
end

-- After the first write of what the script is for: a full server refuses what adds before.
function event.write()
  if not book or #book == 0 then return end
  local last = tonumber(redis.pcall('HINCRBY', meta, 'told', #book))
  if not last then return end
  for i = 1, #book do
    if #book[i] <= LONGEST then
      redis.pcall('XADD', events, 'MAXLEN', '~', COUNT,
        string.format('%s-%.0f', book.opened, last - #book + i), 'e', book[i])
    end
  end
  if last == #book then
    redis.pcall('PEXPIRE', events, math.ceil((book.until_us - now) / 1000))
  end
end

-- For scripts that tell of nothing else.
function event.tell(kind, verb, ids, due_us)
  event.open()
  event.each(kind, verb, ids, due_us)
  event.write()
end

return event
