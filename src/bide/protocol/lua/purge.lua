-- purge: set all delayed, waiting and blocked jobs aside, then delete them in limited steps.
-- @arg   begin    text     names this purge, to set aside; - to continue deleting
-- @arg   limit    integer  how many jobs to delete in this call
-- @reply ok aside more    how many this purge has set aside; whether to continue
-- @reply busy             an earlier trash is left, or jobs are being returned: begin again

-- A trash that a dead caller left is swept first; claims sweep it too.
local has_edges = redis.call('HEXISTS', meta, 'edges') == 1
local function swept() return not trash_sweep.some(limit, has_edges) end
if begin == '-' then return {'ok', 0, swept() and 0 or 1} end
local left = redis.call('HEXISTS', meta, 'trash')
local name, count = string.match(redis.call('HGET', meta, 'purged') or '', '^(%S+) (%d+)$')
if name == begin then return {'ok', tonumber(count), left} end -- a repeat
if left == 1 and not swept() then return {'busy'} end
-- What was claimed ahead comes back first.
if locate.recall_all() then return {'busy'} end
local aside = 0
local function set_aside(from, to)
  local size = redis.call('ZCARD', from)
  if size > 0 then
    redis.call('RENAME', from, to)
    aside = aside + size
  end
end
for i = 1, #due do set_aside(due[i], trash[i]) end
set_aside(blocked, trash[#trash]) -- behind the due sets
if aside == 0 then return {'ok', 0, 0} end
redis.call('UNLINK', order, turns) -- the server frees them beside its work
redis.call('HSET', meta, 'trash', 1, 'purged', begin .. ' ' .. aside)
event.open()
if book then event.add('purged', 'purge', '-', '-', 0, 0, string.format('%d', aside)) end
event.write()
return {'ok', aside, 1}
