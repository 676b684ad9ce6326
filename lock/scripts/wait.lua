-- Joins the queue of a resource on its home node, or looks at it again. The
-- queue is a courtesy: no lock depends on it, so it is bound to no incarnation.
--
-- KEYS[1]  W: sorted set of waiters, in the order in which they came
-- KEYS[2]  L: lock of the resource
-- KEYS[3]  exists at least as long as W does: where it is not there, batches of
--          releases look for no queue
-- ARGV[1]  waiter: id of its Locker (32 hex digits) .. ":" .. number
-- ARGV[2]  resource, the message that wakes
-- ARGV[3]  start of the channels' names
--
-- {pttl, rank}  the lock's time to live (-2: no lock here, -1: it never
--               expires), and how many wait before this one
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
  redis.call('ZADD', KEYS[1], tonumber(last[2] or '0') + 1, ARGV[1])
end
redis.call('PEXPIRE', KEYS[1], 600000)
redis.call('SET', KEYS[3], '', 'PX', 600000)
local pttl = redis.call('PTTL', KEYS[2])
if pttl == -2 then
  -- Nobody else wakes the first one then; whoever does not listen is gone.
  for _, head in ipairs(redis.call('ZRANGE', KEYS[1], 0, 15)) do
    if head == ARGV[1] or redis.call('PUBLISH', ARGV[3] .. string.sub(head, 1, 32), ARGV[2]) > 0 then
      break
    end
    redis.call('ZREM', KEYS[1], head)
  end
end
return {pttl, redis.call('ZRANK', KEYS[1], ARGV[1])}
