-- Leaves the queue of a resource. One that gives up passes on the wake-up that
-- it may have had.
--
-- KEYS[1]  W: sorted set of waiters
-- KEYS[2]  L: lock of the resource
-- KEYS[3]  not used
-- KEYS[4]  S: hash of when each of W looked last
-- ARGV[1]  waiter
-- ARGV[2]  resource, the message that wakes
-- ARGV[3]  start of the channels' names
--
-- {n}  1 if it was in the queue
local n = redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[4], ARGV[1])
if redis.call('EXISTS', KEYS[2]) == 0 then
  for _, head in ipairs(redis.call('ZRANGE', KEYS[1], 0, 15)) do
    if redis.call('PUBLISH', ARGV[3] .. string.sub(head, 1, 32), ARGV[2]) > 0 then
      break
    end
    redis.call('ZREM', KEYS[1], head)
    redis.call('HDEL', KEYS[4], head)
  end
end
return {n}
