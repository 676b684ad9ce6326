-- Joins the queue of a resource on its home node, or looks at it again. The
-- queue is a courtesy: no lock depends on it, so it is bound to no incarnation.
--
-- KEYS[1]  W: sorted set of waiters, in the order in which they came
-- KEYS[2]  L: lock of the resource
-- KEYS[3]  exists at least as long as W does: where it is not there, batches of
--          releases look for no queue
-- KEYS[4]  S: hash of when each of W looked last, ms on this node's clock
-- ARGV[1]  waiter: id of its Locker (32 hex digits) .. ":" .. number
-- ARGV[2]  resource, the message that wakes
-- ARGV[3]  start of the channels' names
-- ARGV[4]  after how long, ms, the first of the queue is out unless it looks
--
-- {0, pttl, rank, holder}  the lock's time to live (-2: no lock here, -1: it
--                          never expires), how many wait before this one, and
--                          who holds it; in the places of acquire.lua's refusal
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
-- One that was stopped still listens, and takes the calls that it does nothing with.
-- Where the clock was set everybody is out, and back at the end.
for _, head in ipairs(redis.call('ZRANGE', KEYS[1], 0, 15)) do
  local seen = redis.call('HGET', KEYS[4], head)
  if not seen then
    redis.call('HSET', KEYS[4], head, now)
  end
  if head == ARGV[1] or math.abs(now - (seen or now)) <= tonumber(ARGV[4]) then
    break
  end
  redis.call('ZREM', KEYS[1], head)
  redis.call('HDEL', KEYS[4], head)
end
if not redis.call('ZSCORE', KEYS[1], ARGV[1]) then
  -- A release takes who does not listen out of W only.
  if redis.call('HLEN', KEYS[4]) > redis.call('ZCARD', KEYS[1]) then
    for _, gone in ipairs(redis.call('HKEYS', KEYS[4])) do
      if not redis.call('ZSCORE', KEYS[1], gone) then
        redis.call('HDEL', KEYS[4], gone)
      end
    end
  end
  local last = redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')
  redis.call('ZADD', KEYS[1], tonumber(last[2] or '0') + 1, ARGV[1])
end
redis.call('HSET', KEYS[4], ARGV[1], now)
redis.call('PEXPIRE', KEYS[1], 600000)
redis.call('PEXPIRE', KEYS[4], 600000)
redis.call('SET', KEYS[3], '', 'PX', 600000)
local pttl = redis.call('PTTL', KEYS[2])
if pttl == -2 then
  -- Nobody else wakes the first one then; whoever does not listen is gone.
  for _, head in ipairs(redis.call('ZRANGE', KEYS[1], 0, 15)) do
    if head == ARGV[1] or redis.call('PUBLISH', ARGV[3] .. string.sub(head, 1, 32), ARGV[2]) > 0 then
      break
    end
    redis.call('ZREM', KEYS[1], head)
    redis.call('HDEL', KEYS[4], head)
  end
end
return {0, pttl, redis.call('ZRANK', KEYS[1], ARGV[1]), string.sub(redis.call('GET', KEYS[2]) or '', 33)}
