-- server_time: read the server's time, after another call of the same round trip.
-- @key   meta
-- @reply ok now

-- A script reads the time once, before all else: what it does then would count as its reply's way.
return {'ok', now}
