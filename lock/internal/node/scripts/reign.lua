-- Notes another replication id of a server whose reign goes on.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- ARGV[1]  the incarnation that the caller found
-- ARGV[2]  the reign that it found noted
-- ARGV[3]  the server's reign
--
-- {1}  noted
-- {0}  the node has another incarnation, or another reign was noted
local m = redis.call('HMGET', KEYS[1], '@incarnation', '@reign')
if m[1] ~= ARGV[1] or m[2] ~= ARGV[2] then
  return {0}
end
redis.call('HSET', KEYS[1], '@reign', ARGV[3])
return {1}
