-- Gives a node another incarnation, whose scripts nobody loaded: it grants nothing until it is
-- admitted, and is not durable until then. So it is marked for another mode, best effort or strict,
-- or as lost.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- ARGV[1]  the incarnation that the caller found; '' for none
-- ARGV[2]  the incarnation that it gets
-- ARGV[3]  the reign that the caller found over; '' if it is not about that
--
-- {1}  done; an admission that had begun is void
-- {0}  the node has another incarnation, or another reign was noted
local m = redis.call('HMGET', KEYS[1], '@incarnation', '@reign')
if (m[1] or '') ~= ARGV[1] or ARGV[3] ~= '' and m[2] ~= ARGV[3] then
  return {0}
end
redis.call('HSET', KEYS[1], '@incarnation', ARGV[2])
redis.call('HDEL', KEYS[1], '@pending', '@durable')
return {1}
