-- Conversions of stored data between schemas. `schemas[n]` names a hash and has two functions from
-- one of its values to another, or to nil if there is nothing to change: `up` from schema n - 1 to
-- n, and `down`. Each accepts values of either schema, because both exist while a queue is being
-- converted, and a part may be converted twice.
local schemas = {}

return schemas
