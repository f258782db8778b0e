-- What a producer will wait for behind the script, and whether this server can do that: asked
-- before anything is written, so that what cannot be had is refused and not pretended.
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
  if not known or not allowed then return known and 'right:' .. command or command end
  local info = redis.pcall('INFO', section)
  if type(info) ~= 'string' then return 'INFO' end
  if not string.find(info, words) then return name end
end

function durability.valid(wanted)
  return wanted == '' or wanted == 'replica' or wanted == 'fsync' or wanted == 'replica,fsync'
end

-- What the server, or the caller's rights, lack; nil for nothing.
function durability.lacks(wanted)
  for kind in string.gmatch(wanted, '%a+') do
    local found = SIGNS[kind] and lack(unpack(SIGNS[kind]))
    if found then return found end
  end
end

return durability
