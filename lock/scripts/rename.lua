-- Gives a node another incarnation, whose scripts nobody loaded: it grants nothing until it is
-- admitted, and is not durable until then. So it is marked for another mode, best effort or strict,
-- or as lost.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- ARGV[1]  the incarnation that the caller found; '' for none
-- ARGV[2]  the incarnation that it gets
--
-- {1}  done; an admission that had begun is void
-- {0}  the node has another incarnation
if (redis.call('HGET', KEYS[1], '@incarnation') or '') ~= ARGV[1] then
  return {0}
end
redis.call('HSET', KEYS[1], '@incarnation', ARGV[2])
redis.call('HDEL', KEYS[1], '@pending', '@durable')
return {1}
