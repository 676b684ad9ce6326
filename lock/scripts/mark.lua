-- Marks a node for another mode, best effort or strict: it has an incarnation of that
-- mode then whose scripts nobody loaded, and so grants nothing until it is admitted. What it
-- kept over its restarts proves nothing in the other mode: it is not durable until then.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- ARGV[1]  the incarnation that the caller found; '' for none
-- ARGV[2]  the incarnation that it gets
--
-- {1}  marked; an admission that had begun is void
-- {0}  the node has another incarnation
if (redis.call('HGET', KEYS[1], '@incarnation') or '') ~= ARGV[1] then
  return {0}
end
redis.call('HSET', KEYS[1], '@incarnation', ARGV[2])
redis.call('HDEL', KEYS[1], '@pending', '@durable')
return {1}
