-- Begins the admission of a node that lost its data or its run, or is new.
-- Sent by EVAL in one MULTI/EXEC with SCRIPT LOAD of the bound scripts, whose text
-- contains the nonce. Where this one refuses, or before the admission has ended,
-- they do nothing: they look for their nonce in @incarnation, or in @pending.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- KEYS[2]  Q: quarantine, expires by itself
-- ARGV[1]  nonce of this admission
-- ARGV[2]  quarantine, ms; 0 for none (first start, embedded nodes); -1 for none, and
--          one that runs ends (best effort)
-- ARGV[3]  the incarnation that the caller found dead; '' for none
-- ARGV[4]  the admission that the caller found void, because the node has lost its
--          run since: it can neither end nor shorten its quarantine; '' for none
-- ARGV[5]  at a first start, the longest ttl that this caller's admission will grant,
--          ms: nodes that another caller admits at the same time know of it; 0 otherwise
--
-- {1}        begun: @pending is the nonce, Q runs
-- {0}        race: the node has another incarnation than the caller found
-- {2, pttl}  another admission's quarantine is running
local m = redis.call('HMGET', KEYS[1], '@incarnation', '@pending')
if (m[1] or '') ~= ARGV[3] then
  return {0}
end
local q = redis.call('GET', KEYS[2])
if m[2] and m[2] ~= ARGV[1] and m[2] ~= ARGV[4] and q then
  local left = redis.call('PTTL', KEYS[2])
  -- More left than there was at first: the clock was set back, perhaps by
  -- hours. A whole quarantine from now on is safe and ends.
  if left <= (tonumber(string.match(q, ':(%d+)$')) or left) then
    return {2, left}
  end
end
redis.call('HSET', KEYS[1], '@pending', ARGV[1])
if tonumber(ARGV[5]) > 0 then
  local longest = tonumber(redis.call('HGET', KEYS[1], '@longest') or '0')
  redis.call('HSET', KEYS[1], '@longest', math.max(longest, ARGV[5]))
end
if tonumber(ARGV[2]) > 0 then
  redis.call('SET', KEYS[2], ARGV[1] .. ':' .. ARGV[2], 'PX', ARGV[2])
elseif tonumber(ARGV[2]) < 0 then
  redis.call('DEL', KEYS[2])
end
return {1}
