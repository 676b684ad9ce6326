-- Raises the base of an admitted node: as if every counter, also those of
-- resources that nobody has used yet, had been counted up to it.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- ARGV[1]  the incarnation that the caller found
-- ARGV[2]  base
--
-- {1}  the base is at least that now
-- {0}  the node has another incarnation, or none
local m = redis.call('HMGET', KEYS[1], '@incarnation', '@base')
if m[1] ~= ARGV[1] then
  return {0}
end
if tonumber(m[2] or '0') < tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], '@base', ARGV[2])
end
return {1}
