-- Parks an admitted node: it grants nothing from now on. What it holds then is all that
-- it ever granted. The mark is the last thing that is written of it, so a restart which
-- brings the mark back has lost nothing.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- ARGV[1]  the epoch that was raised for this
--
-- {1}   parked
-- {-1}  this node is not admitted in this incarnation
if redis.call('HGET', KEYS[1], '@incarnation') ~= '@NONCE@' then
  return {-1}
end
redis.call('HSET', KEYS[1], '@incarnation', 'parked:' .. ARGV[1] .. ':@NONCE@')
return {1}
