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
local m = redis.call('HMGET', KEYS[1], '@incarnation', '@base', '@maxttl')
if m[1] ~= '@NONCE@' then
  return {-1}
end
if tonumber(ARGV[3]) > tonumber(m[3]) then
  return {-3, tonumber(m[3])}
end
local least = math.max(tonumber(m[2]), tonumber(ARGV[4]))
local held = redis.call('GET', KEYS[2])
if held and string.sub(held, 1, 32) ~= string.sub(ARGV[2], 1, 32) then
  local c = tonumber(redis.call('HGET', KEYS[1], ARGV[1]) or '0')
  return {0, redis.call('PTTL', KEYS[2]), math.max(c, tonumber(m[2])), string.sub(held, 33)}
end
-- The own lock may be there already (a repeated message): counting up all the
-- same keeps tokens unique; "return the existing one" did not.
--
-- The counter is written before the lock, so that no lock exists without its
-- count.
local c = redis.call('HINCRBY', KEYS[1], ARGV[1], '1')
if c <= least then
  c = redis.call('HINCRBY', KEYS[1], ARGV[1], least + 1 - c)
end
if c % 4294967296 == 0 or c >= 9007199254740992 then
  redis.call('HINCRBY', KEYS[1], ARGV[1], '-1')
  return {-2}
end
-- A counter of a later epoch than the base came by a floor: the node knows of that
-- epoch from now on.
if c - c % 4294967296 > tonumber(m[2]) then
  local epoch = math.floor(c / 4294967296)
  if epoch > tonumber(redis.call('HGET', KEYS[1], '@epoch') or '0') then
    redis.call('HSET', KEYS[1], '@epoch', string.format('%.0f', epoch))
  end
end
-- A first message that comes again, late, takes nothing from an extended lock.
if held and redis.call('PTTL', KEYS[2]) > tonumber(ARGV[3]) then
  return {c}
end
-- With GET the answer is the old value, mostly nothing; without, a table.
redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3], 'GET')
return {c}
