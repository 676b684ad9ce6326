-- One page of a sweep: deletes counters that the base makes up for. One at or
-- below it may go at any time, since only the greater of the two is ever looked
-- at. A larger one may not.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- ARGV[1]  cursor; 0 to begin with
-- ARGV[2]  'look': delete nothing; 'delete'
--
-- {cursor, highest, n}  the next page (a text; '0': this was the last), the
--                       highest counter of this one (a text), and how many were deleted
local base = tonumber(redis.call('HGET', KEYS[1], '@base') or '-1')
local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'MATCH', 'c:*', 'COUNT', 2000)
local top, n, dead = 0, 0, {}
for i = 2, #page[2], 2 do
  local c = tonumber(page[2][i])
  top = math.max(top, c)
  if c <= base and ARGV[2] == 'delete' then
    dead[#dead + 1] = page[2][i - 1]
  end
  if #dead == 1000 or (#dead > 0 and i + 1 > #page[2]) then
    n = n + redis.call('HDEL', KEYS[1], unpack(dead))
    dead = {}
  end
end
return {page[1], string.format('%.0f', top), n}
