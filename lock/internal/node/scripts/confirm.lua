-- Phase 2 of an acquisition: bring the counter of a granting node up to the
-- token that the quorum agreed on.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- KEYS[2]  L: lock of the resource
-- ARGV[1]  counter field, "c:" .. resource
-- ARGV[2]  owner of this attempt
-- ARGV[3]  token T
--
-- {1}   confirmed: this node's counter is T and the lock is still ours
-- {0}   lost: the lock is not ours any more, or the counter has passed T
-- {-1}  this node is not admitted in this incarnation
--
-- Both tests are needed. By owner alone, a phase-1 message that arrives twice
-- lets two attempts confirm the same token.
local m = redis.call('HMGET', KEYS[1], '@incarnation', '@base', ARGV[1])
if m[1] ~= '@NONCE@' then
  return {-1}
end
local held = redis.call('GET', KEYS[2])
if not held or string.sub(held, 1, 32) ~= ARGV[2] then
  return {0}
end
local t = tonumber(ARGV[3])
if math.max(tonumber(m[3] or '0'), tonumber(m[2])) > t then
  return {0}
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', t))
-- A token of a later epoch than the base: the node knows of that epoch from now on.
local epoch = math.floor(t / 4294967296)
if epoch * 4294967296 > tonumber(m[2]) and epoch > tonumber(redis.call('HGET', KEYS[1], '@epoch') or '0') then
  redis.call('HSET', KEYS[1], '@epoch', string.format('%.0f', epoch))
end
return {1}
