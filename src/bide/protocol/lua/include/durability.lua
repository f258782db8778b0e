-- The durability of an enqueue, and whether the server can give it: checked before any write.
local durability = {}

-- Which of `INFO`'s sections says so, and the words to look for.
local SIGNS = {
  replica = {'WAIT', 'replication', 'slave%d+:[^\r\n]*state=online', 'replica', '1', '1'},
  fsync = {'WAITAOF', 'persistence', 'aof_enabled:1', 'appendonly', '1', '0', '1'},
}

local function lack(command, section, words, name, ...)
  -- The check came with Redis 7.0, WAITAOF with 7.2. It raises for a command that there is not.
  local known, allowed = command == 'WAIT', true
  if redis.acl_check_cmd then known, allowed = pcall(redis.acl_check_cmd, command, ...) end
  if not known or not allowed then return known and 'permission:' .. command or command end
  local info = redis.pcall('INFO', section)
  if type(info) ~= 'string' then return 'INFO' end
  if not string.find(info, words) then return name end
end

function durability.valid(wanted)
  return wanted == '' or wanted == 'replica' or wanted == 'fsync' or wanted == 'replica,fsync'
end

-- The reply of a script that refuses what the server, or the caller's permissions, lack; or nil.
function durability.refusal(wanted, script)
  if not durability.valid(wanted) then
    return redis.error_reply('BADARG ' .. script .. ' wanted')
  end
  for kind in string.gmatch(wanted, '%a+') do
    local found = lack(unpack(SIGNS[kind]))
    if found then return {'cannot', found} end
  end
end

return durability
