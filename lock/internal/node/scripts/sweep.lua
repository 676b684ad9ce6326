-- One page of a sweep: deletes counters that the base makes up for. One at or
-- below it may go at any time, since only the greater of the two is ever looked
-- at. A larger one may not.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- ARGV[1]  cursor; 0 to begin with
-- ARGV[2]  'look': delete nothing; 'delete'
-- ARGV[3]  limit of highest
--
-- {cursor, highest, n, ahead}  the next page (a text; '0': this was the last), the
--                              highest counter of this one up to its limit (a text),
--                              how many were deleted, and how many are above the limit
--                              by at most 1024 epochs (as in fence.invalidate_all):
--                              further above, a counter's fence was made up
local base = tonumber(redis.call('HGET', KEYS[1], '@base') or '-1')
local page = redis.call('HSCAN', KEYS[1], ARGV[1], 'MATCH', 'c:*', 'COUNT', 2000)
local limit = tonumber(ARGV[3])
local top, n, ahead, dead = 0, 0, 0, {}
for i = 2, #page[2], 2 do
  local c = tonumber(page[2][i])
  if c <= limit then
    top = math.max(top, c)
  elseif c <= limit + 1024 * 4294967296 then
    ahead = ahead + 1
  end
  if c <= base and ARGV[2] == 'delete' then
    dead[#dead + 1] = page[2][i - 1]
  end
  if #dead == 1000 or (#dead > 0 and i + 1 > #page[2]) then
    n = n + redis.call('HDEL', KEYS[1], unpack(dead))
    dead = {}
  end
end
return {page[1], string.format('%.0f', top), n, ahead}
