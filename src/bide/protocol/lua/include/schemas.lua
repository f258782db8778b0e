-- How what is stored goes from one schema to the next, and back. `schemas[n]` names a hash and has
-- two functions from one of its values to another, or to nil where there is nothing to change: `up`
-- from schema n - 1 to n, and `down`. Each takes values of either schema, because both stand side
-- by side while a queue is converted, and a piece may be converted twice.
local schemas = {}

return schemas
