-- Phase 1 of an acquisition: count up and take the lock, in one step.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- KEYS[2]  L: lock of the resource; its value is owner (32 hex digits) .. holder
-- ARGV[1]  counter field, "c:" .. resource
-- ARGV[2]  owner (fresh 128-bit id of this attempt, never shared or reused) .. holder (name for people)
-- ARGV[3]  ttl, ms
-- ARGV[4]  floor: a token already seen or recorded; 0 for none
--
-- {c}                           granted with counter c > 0
-- {0, pttl, counter, holder}    held by another owner; pttl -1: it never expires (a leak)
-- {-1}                          this node is not admitted in this incarnation
-- {-2}                          counter is used up in this epoch
-- {-3, maxttl}                  ttl is over the node's maximum
--
-- The nonce binds the script to one admission: see admit.lua.
local m = redis.call('HMGET', KEYS[1], '@incarnation', '@base', '@maxttl', ARGV[1])
if m[1] ~= '@NONCE@' then
  return {-1}
end
local ttl = tonumber(ARGV[3])
if ttl > tonumber(m[3]) then
  return {-3, tonumber(m[3])}
end
local c = math.max(tonumber(m[4] or '0'), tonumber(m[2]))
local held = redis.call('GET', KEYS[2])
if held and string.sub(held, 1, 32) ~= string.sub(ARGV[2], 1, 32) then
  return {0, redis.call('PTTL', KEYS[2]), c, string.sub(held, 33)}
end
-- The own lock may be there already (a repeated message): counting up all the
-- same keeps tokens unique; "return the existing one" did not.
c = math.max(c, tonumber(ARGV[4])) + 1
if c % 4294967296 == 0 or c >= 9007199254740992 then
  return {-2}
end
-- The counter is written before the lock, so that no lock exists without its
-- count. '..' and tostring would turn 1e14 into "1e+14"; '%.0f' does not.
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', c))
redis.call('SET', KEYS[2], ARGV[2], 'PX', ttl)
return {c}
