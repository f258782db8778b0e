-- dep_subscribe: subscribe jobs of another queue to the ends of jobs of this queue.
-- @rest  child parent
-- @reply ok, then per pair: - | C | F | X | U | D
-- @reply busy       the data of earlier jobs with these ids is being removed: call again

-- `-`: it has not ended; C, F, X: it has completed, failed, was cancelled; U: there is no such job,
-- or it is being placed; D: the queue is a delay queue, and holds data
local parents, known = {}, {}
for i = rest, #ARGV, 2 do
  if not string.find(ARGV[i], '^{[^%s%c{}]+}[^%s%c{}]+$')
    or not string.find(ARGV[i + 1], '^[^%s%c{}]+$') then
    return redis.error_reply('BADARG dep_subscribe rest')
  end
  if not known[ARGV[i + 1]] then parents[#parents + 1] = ARGV[i + 1] end
  known[ARGV[i + 1]] = true
end
if redis.call('HEXISTS', meta, 'edges') == 1 then
  -- What a job of this name left when it was removed is told before another waits for its namesake.
  event.open()
  if deps_insert.is_busy({}, parents) then
    finish.close()
    return {'busy'}
  end
end
local is_data = redis.call('HGET', meta, 'kind') == 'data'
local states = deps.known(parents)
local reply, adds = {'ok'}, {}
for i = rest, #ARGV, 2 do
  local child, parent = ARGV[i], ARGV[i + 1]
  local word = states[parent]
  if is_data then
    word = 'D'
  elseif word == 'live' then
    word = '-'
    adds[#adds + 1] = 0
    adds[#adds + 1] = '>' .. parent .. ' ' .. child
  else
    -- Of one that was removed since, the message may not have been delivered yet.
    for _, outcome in ipairs({'C', 'F', 'X'}) do
      if redis.call('ZSCORE', edges, '@' .. child .. ' ' .. parent .. ' ' .. outcome) then
        word = outcome
      end
    end
    word = word or 'U'
  end
  reply[#reply + 1] = word
end
if #adds > 0 then
  redis.call('HSET', meta, 'edges', 1, 'terms', 1)
  redis.call('ZADD', edges, unpack(adds))
end
return reply
