-- Gives a node the locks that others hold, before it is admitted, so that leases
-- outlast one restart after the other. Without counters: the node's base is above
-- them. Only where no lock of another owner is, and never shorter than it was.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- KEYS     then L of each, no lock twice
-- ARGV     value and time to live, ms, of each
--
-- {n}   how many locks were set or made longer
-- {-1}  this admission is over, or void: an admitted node is given nothing
if redis.call('HGET', KEYS[1], '@pending') ~= '@NONCE@' then
  return {-1}
end
local n = 0
for i = 2, #KEYS do
  local value, ttl = ARGV[2 * i - 3], ARGV[2 * i - 2]
  local held = redis.call('GET', KEYS[i])
  if not held then
    redis.call('SET', KEYS[i], value, 'PX', ttl)
    n = n + 1
  elseif string.sub(held, 1, 32) == string.sub(value, 1, 32) and redis.call('PTTL', KEYS[i]) < tonumber(ttl) then
    redis.call('PEXPIRE', KEYS[i], ttl)
    n = n + 1
  end
end
return {n}
