-- Reads an admitted node's epoch, and promises it one: for groups whose nodes keep
-- the epoch themselves. An epoch is used only after a quorum was promised it.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- ARGV[1]  the epoch to promise; 0: only read
--
-- {epoch}  the highest that this node knows of: promised, of its base, or of a counter
-- {-1}     this node is not admitted in this incarnation
local m = redis.call('HMGET', KEYS[1], '@incarnation', '@base', '@epoch')
if m[1] ~= '@NONCE@' then
  return {-1}
end
local epoch = math.max(tonumber(m[3] or '0'), math.floor(tonumber(m[2]) / 4294967296))
if tonumber(ARGV[1]) > epoch then
  epoch = tonumber(ARGV[1])
  redis.call('HSET', KEYS[1], '@epoch', ARGV[1])
end
return {epoch}
