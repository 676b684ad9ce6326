-- Deletes a lock if it is still the owner's, and wakes the first who waits.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- KEYS[2]  L: lock of the resource
-- KEYS[3]  W: sorted set of waiters; only where this node may have one
-- KEYS[4]  exists while anybody waits on this node, see wait.lua; without it W is read
-- ARGV[1]  owner
-- ARGV[2]  resource, the message that wakes
-- ARGV[3]  start of the channels' names
--
-- {1}  deleted
-- {0}  nothing to delete: the lock is gone or another's
--
-- The incarnation @NONCE@ is in the text only because this script is loaded
-- together with the others; giving a lock back is right in any incarnation.
local found = redis.call('MGET', KEYS[2], KEYS[4] or KEYS[2])
local held = found[1]
if not held or string.sub(held, 1, 32) ~= ARGV[1] then
  return {0}
end
redis.call('DEL', KEYS[2])
if KEYS[3] and (found[2] or not KEYS[4]) then
  for _, head in ipairs(redis.call('ZRANGE', KEYS[3], 0, 15)) do
    if redis.call('PUBLISH', ARGV[3] .. string.sub(head, 1, 32), ARGV[2]) > 0 then
      break
    end
    redis.call('ZREM', KEYS[3], head) -- it does not listen any more
  end
end
return {1}
