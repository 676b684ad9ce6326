-- Admits a node. The beginning of the admission loaded this script and the others
-- that are bound to it. The script cache lives in memory only, so a node that
-- restarts, even from a snapshot with an old marker or with this nonce in
-- @pending, has lost them and answers NOSCRIPT.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- KEYS[2]  Q: quarantine
-- ARGV[1]  base = epoch * 2^32; the epoch was raised AFTER the nonce was
--          written (a slow admission with an older epoch made tokens fall)
-- ARGV[2]  the longest ttl that the node grants, ms; limit.lua changes it
-- ARGV[3]  the longest ttl that a lease may still have, ms
-- ARGV[4]  'stored': note that a store outside of the nodes keeps the epoch
-- ARGV[5]  'durable': note that this server keeps what it acknowledges over a crash
--
-- {1}        admitted
-- {0}        race: another admission has begun, or the data is gone again
-- {2, pttl}  quarantine is still running
-- {3}        stale epoch: the node's base is not lower
local m = redis.call('HMGET', KEYS[1], '@pending', '@base', '@incarnation', '@longest')
if m[1] ~= '@NONCE@' then
  return {0}
end
if redis.call('EXISTS', KEYS[2]) == 1 then
  return {2, redis.call('PTTL', KEYS[2])}
end
if m[2] and tonumber(m[2]) >= tonumber(ARGV[1]) then
  return {3}
end
local longest = tonumber(ARGV[3])
if not m[3] then -- a first start: another one may have begun here, which will grant more
  longest = math.max(longest, tonumber(m[4] or '0'))
end
-- The note is for people, and longer than 64 bytes for Redis: H is a hash table
-- from the start then. As a list, which a short hash is, each counter took a
-- walk over all of them.
redis.call('HSET', KEYS[1], '@incarnation', '@NONCE@', '@base', ARGV[1], '@maxttl', ARGV[2], '@longest', longest,
  '@note', 'kept by fencegate: without this key the node counts as lost and grants nothing')
redis.call('HDEL', KEYS[1], '@pending', '@stored', '@durable', '@reign')
if ARGV[4] == 'stored' then
  redis.call('HSET', KEYS[1], '@stored', '1')
end
if ARGV[5] == 'durable' then
  redis.call('HSET', KEYS[1], '@durable', '1')
end
-- The server's reign: if it changes, the server may have lost what it granted. An ACL may refuse it.
local said = redis.pcall('INFO', 'replication', 'stats')
if type(said) == 'string' then
  local id, evicted = string.match(said, 'master_replid:(%x+)'), string.match(said, 'evicted_keys:(%d+)')
  if id and evicted then
    redis.call('HSET', KEYS[1], '@reign', id .. ':' .. evicted)
  end
end
return {1}
