-- list_due: read a page of the ids of jobs due in an interval, by priority and due time.
-- @arg   from_us  integer  where the stretch begins
-- @arg   to_us    integer  where it ends; what is due then is not in it
-- @arg   start    integer  how many to pass over
-- @arg   count    integer  how many at most
-- @reply ok now total, then id due

local reply = {'ok', now, 0}
local low, high = string.format('(%.0f', from_us), string.format('(%.0f', to_us)
reply[3] = due_page.add(reply, low, high, start, count, 'WITHSCORES')
return reply
