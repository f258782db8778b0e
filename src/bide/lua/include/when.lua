-- When a job is due, as callers write it: '+N' is N microseconds from now on the server's clock,
-- '=N' is a moment. A moment that has passed means now: nothing is due before it is asked for.
local when = {}

function when.valid(text)
  return string.find(text, '^[+=]%d+$') ~= nil and #text <= 17
end

function when.us(text, now)
  if string.byte(text) == 43 then return now + text end
  return math.max(tonumber(string.sub(text, 2)), now)
end

return when
