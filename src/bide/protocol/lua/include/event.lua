-- What became of jobs, told to those who listen: entries of a capped stream, a line of text each.
--
--   kind verb at id worker attempt due data
--
-- id, worker: '-' where there is none; attempt, due: 0. data: the beginning of an error's or of a
-- progress's JSON, or how many jobs were removed. The id of an entry is <opened>-<n>: when the
-- stream was opened, and which entry since then it is. So ids without a hole are entries without a
-- gap, and a reader sees a gap without any state on the server.
--
-- Nothing is written unless `listened` in `meta` says that someone holds the stream open. Telling
-- must not cost a script its end: hence `pcall`. What could not be written has its number, and
-- shows as a gap.
local event = {}

local COUNT, DATA, LONGEST = 10000, 300, 1024

-- Where lines are gathered, if someone listens. `listened`: the field of `meta`, or false.
function event.open(listened, now)
  if not listened then return nil end
  local until_us, opened = string.match(listened, '^(%d+) (%d+)$')
  if not until_us or tonumber(until_us) <= now then return nil end
  return {now = now, at = string.format('%.0f', now), until_us = tonumber(until_us),
    opened = opened}
end

-- The same for scripts that read nothing else of `meta`.
function event.book(meta, now) return event.open(redis.call('HGET', meta, 'listened'), now) end

function event.add(book, kind, verb, id, worker, attempt, due, data)
  book[#book + 1] = string.format('%s %s %s %s %s %d %.0f ', kind, verb, book.at, id, worker,
    attempt, due) .. string.sub(data, 1, DATA)
end

-- Adds that nothing is left to do, if that is so: no job is active, and none is due.
function event.drained(book, verb, active, due)
  if redis.call('ZCARD', active) > 0 then return end
  for i = 1, #due do
    local head = redis.call('ZRANGE', due[i], 0, 0, 'WITHSCORES')
    if head[2] and tonumber(head[2]) <= book.now then return end
  end
  event.add(book, 'drained', verb, '-', '-', 0, 0, '')
end

-- After the first write of what the script is for: a full server refuses what adds before.
function event.write(meta, events, book)
  if #book == 0 then return end
  local last = tonumber(redis.pcall('HINCRBY', meta, 'told', #book))
  if not last then return end
  for i = 1, #book do
    if #book[i] <= LONGEST then
      redis.pcall('XADD', events, 'MAXLEN', '~', COUNT,
        string.format('%s-%.0f', book.opened, last - #book + i), 'e', book[i])
    end
  end
  if last == #book then
    redis.pcall('PEXPIRE', events, math.ceil((book.until_us - book.now) / 1000))
  end
end

return event
