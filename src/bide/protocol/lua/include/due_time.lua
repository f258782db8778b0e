-- When a job is due, as callers write it: '+N' is N microseconds from now on the server's clock,
-- '=N' a moment. A moment that has passed means now: nothing is due before it is asked for.
local due_time = {}

function due_time.valid(text)
  return string.find(text, '^[+=]%d+$') ~= nil and #text <= 17
end

-- Second: what to write as a score, which is text where there is one. A server takes long to make
-- text of a number: who writes one for many jobs makes text of it once (decision 15).
function due_time.us(text)
  if string.byte(text) == 43 then
    local us = now + text
    return us, us
  end
  local moment = string.sub(text, 2)
  local us = tonumber(moment)
  if us > now then return us, moment end
  return now, now
end

return due_time
