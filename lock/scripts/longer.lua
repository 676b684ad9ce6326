-- Raises a node's maximum TTL, after the longest TTL in use was recorded.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- ARGV[1]  the incarnation that the caller found; the node was not admitted under a
--          later record than the caller's
-- ARGV[2]  ttl, ms
--
-- {1}  the maximum is at least that now
-- {0}  the node has another incarnation, or none
local m = redis.call('HMGET', KEYS[1], '@incarnation', '@maxttl')
if m[1] ~= ARGV[1] then
  return {0}
end
if tonumber(m[2] or '0') < tonumber(ARGV[2]) then
  redis.call('HSET', KEYS[1], '@maxttl', ARGV[2])
end
return {1}
