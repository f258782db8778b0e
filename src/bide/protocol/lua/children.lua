-- children: read the children of a job that have not ended.
-- @arg   id     text     the id of the parent
-- @arg   limit  integer  the maximum number of ids
-- @reply ok now total, then ids; of jobs of other queues, `{queue}id`

local reply = {'ok', now, 0}
for _, mark in ipairs({'>', '='}) do
  local first, last = '[' .. mark .. id .. ' ', '(' .. mark .. id .. '!'
  local total = redis.call('ZLEXCOUNT', edges, first, last)
  if total > 0 and limit > 0 then
    local found = redis.call('ZRANGEBYLEX', edges, first, last, 'LIMIT', 0, limit)
    for _, member in ipairs(found) do reply[#reply + 1] = string.sub(member, #id + 3) end
    limit = limit - #found
  end
  reply[3] = reply[3] + total
end
return reply
