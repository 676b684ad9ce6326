-- Extends a lock that is still the owner's. Never creates one: a watchdog that
-- re-created a vanished lock gave duplicate tokens. Never shortens one either: its
-- holder may go by an older deadline, or by that of a longer extension which came
-- before this one.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- KEYS[2]  L: lock of the resource
-- ARGV[1]  owner
-- ARGV[2]  ttl, ms
--
-- {1}           extended: the lock lasts that long at least
-- {0}           lost: the lock is gone or another's
-- {-1}          this node is not admitted in this incarnation
-- {-3, maxttl}  ttl is over the node's maximum
local m = redis.call('HMGET', KEYS[1], '@incarnation', '@maxttl')
if m[1] ~= '@NONCE@' then
  return {-1}
end
local ttl = tonumber(ARGV[2])
if ttl > tonumber(m[2]) then
  return {-3, tonumber(m[2])}
end
local held = redis.call('GET', KEYS[2])
if not held or string.sub(held, 1, 32) ~= ARGV[1] then
  return {0}
end
if redis.call('PTTL', KEYS[2]) < ttl then -- also where it is -1: it would never expire
  redis.call('PEXPIRE', KEYS[2], ttl)
end
return {1}
