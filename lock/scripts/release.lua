-- Deletes a lock if it is still the owner's.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- KEYS[2]  L: lock of the resource
-- ARGV[1]  owner
--
-- {1}  deleted
-- {0}  nothing to delete: the lock is gone or another's
--
-- The incarnation @NONCE@ is in the text only because this script is loaded
-- together with the others; giving a lock back is right in any incarnation.
local held = redis.call('GET', KEYS[2])
if not held or string.sub(held, 1, 32) ~= ARGV[1] then
  return {0}
end
return {redis.call('DEL', KEYS[2])}
