-- One step of a change of the longest TTL. @maxttl is the longest that the node grants,
-- @longest the longest that a lease may still have: the length of a quarantine. No node
-- may grant a TTL that is over any node's @longest, so a change to a higher one raises
-- @longest everywhere before any @maxttl, and one to a lower one lowers @maxttl
-- everywhere, and @longest when every longer lease is over.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- ARGV[1]  the incarnation that the caller found
-- ARGV[2]  the change's id
-- ARGV[3]  'begin' or 'end'; an end is refused if another change has begun since
-- ARGV[4]  ttl, ms
--
-- {1}  done
-- {0}  the node has another incarnation, or another change has begun
local m = redis.call('HMGET', KEYS[1], '@incarnation', '@change', '@maxttl', '@longest')
if m[1] ~= ARGV[1] or (ARGV[3] == 'end' and m[2] ~= ARGV[2]) then
  return {0}
end
local ttl, granted, longest = tonumber(ARGV[4]), tonumber(m[3] or '0'), tonumber(m[4] or '0')
if ARGV[3] == 'end' then
  granted, longest = ttl, ttl
else
  granted, longest = math.min(ttl, granted), math.max(ttl, longest)
end
redis.call('HSET', KEYS[1], '@change', ARGV[2], '@maxttl', granted, '@longest', longest)
return {1}
