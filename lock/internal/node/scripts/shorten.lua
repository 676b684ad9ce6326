-- Shortens a quarantine, once, to the longest time that a lock of a lost node may
-- still count: N/2+1 other nodes reported it, each in its present run, no earlier
-- than a round's time after this admission began. A durable node has lost none.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- KEYS[2]  Q: quarantine
-- ARGV[1]  what Q was set to when the admission began
-- ARGV[2]  what is left, ms; 0: nothing
--
-- {1}  the quarantine lasts that long at most
-- {0}  race: another admission has begun, or the quarantine was shortened or is over
if redis.call('HGET', KEYS[1], '@pending') ~= '@NONCE@' or redis.call('GET', KEYS[2]) ~= ARGV[1] then
  return {0}
end
if tonumber(ARGV[2]) <= 0 then
  redis.call('DEL', KEYS[2])
elseif tonumber(ARGV[2]) < redis.call('PTTL', KEYS[2]) then
  redis.call('SET', KEYS[2], '@NONCE@:shortened:' .. ARGV[2], 'PX', ARGV[2])
end
return {1}
