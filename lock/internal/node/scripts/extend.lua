-- Extends locks that are still their owners'. Never creates one: a watchdog that
-- re-created a vanished lock gave duplicate tokens. Never shortens one either: its
-- holder may go by an older deadline, or by that of a longer extension which came
-- before this one.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- KEYS     then L of each, no lock twice
-- ARGV     owner and ttl, ms, of each
--
-- Flat: for each
--   1   extended: the lock lasts that long at least
--   0   lost: the lock is gone or another's
--   -1  this node is not admitted in this incarnation
--   -3  ttl is over the node's maximum
-- then for each with -3 four values: its place in the order from 1, maxttl, 0, ''
local m = redis.call('HMGET', KEYS[1], '@incarnation', '@maxttl')
local found = redis.call('MGET', unpack(KEYS, 2))
local admitted, maxttl = m[1] == '@NONCE@', tonumber(m[2] or '0')
local answer, tail = {}, {}
for i, held in ipairs(found) do
  local ttl = tonumber(ARGV[2 * i])
  if not admitted then
    answer[i] = -1
  elseif ttl > maxttl then
    answer[i] = -3
    for _, v in ipairs({i, maxttl, 0, ''}) do
      tail[#tail + 1] = v
    end
  elseif not held or string.sub(held, 1, 32) ~= ARGV[2 * i - 1] then
    answer[i] = 0
  else
    if redis.call('PTTL', KEYS[i + 1]) < ttl then -- also where it is -1: it would never expire
      redis.call('PEXPIRE', KEYS[i + 1], ARGV[2 * i])
    end
    answer[i] = 1
  end
end
for i = 1, #tail do
  answer[#found + i] = tail[i]
end
return answer
