-- One page of the locks of an admitted node, for the admission of another: bound, so
-- that each page proves the node's run. A lock that is there from the first page to
-- the last is in one of them.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- ARGV[1]  cursor; 0 to begin with
-- ARGV[2]  pattern of the locks' names
--
-- {-1}                                  this node is not admitted in this incarnation
-- {cursor, name, value, pttl, name, …}  the next page (a text; '0': this was the last), and its locks;
--                                       pttl -1: the lock never ends
if redis.call('HGET', KEYS[1], '@incarnation') ~= '@NONCE@' then
  return {-1}
end
local page = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', 1000)
local answer = {page[1]}
for _, name in ipairs(page[2]) do
  local value, pttl = redis.call('GET', name), redis.call('PTTL', name)
  if value and pttl ~= -2 then
    answer[#answer + 1] = name
    answer[#answer + 1] = value
    answer[#answer + 1] = pttl
  end
end
return answer
