-- Several acquires (phase 1) and releases of different resources in one step:
-- the same as acquire.lua for each acquire and then release.lua for each
-- release, one after the other. They touch different locks and counters, so
-- none of them could see another, and their order does not matter.
--
-- KEYS     H, then L of each acquire, then L of each release; no L twice
-- ARGV[1]  na: how many acquires
-- ARGV[2]  length of the part of L before the resource's name
-- ARGV     then owner, ttl ms, floor, holder of each acquire; then owner of each release
--
-- Flat: for each acquire its counter c > 0, or 0, -1, -2, -3 as acquire.lua has
-- them; for each release 1 or 0; then for each acquire with 0 or -3 four
-- values: its index from 1, pttl (or maxttl), counter, holder.
--
-- After an error any of the acquires may have been granted.
local na, prefix = tonumber(ARGV[1]), tonumber(ARGV[2])
local nr = #KEYS - 1 - na
local fields = {'@incarnation', '@base', '@maxttl'}
for i = 1, na do
  fields[i + 3] = 'c:' .. string.sub(KEYS[1 + i], prefix + 1)
end
local m = redis.call('HMGET', KEYS[1], unpack(fields))
local held = redis.call('MGET', unpack(KEYS, 2))
local answer, tail, counters, granted = {}, {}, {}, {}
if m[1] ~= '@NONCE@' then
  for i = 1, na do
    answer[i] = -1
  end
else
  local base, maxttl = tonumber(m[2]), tonumber(m[3])
  for i = 1, na do
    local at = 4 * i - 1 -- of the owner in ARGV
    local c = math.max(tonumber(m[i + 3] or '0'), base)
    if tonumber(ARGV[at + 1]) > maxttl then
      answer[i] = -3
      local n = #tail
      tail[n + 1], tail[n + 2], tail[n + 3], tail[n + 4] = i, maxttl, c, ''
    elseif held[i] and string.sub(held[i], 1, 32) ~= ARGV[at] then
      answer[i] = 0
      local n = #tail
      tail[n + 1], tail[n + 2], tail[n + 3], tail[n + 4] = i, redis.call('PTTL', KEYS[1 + i]), c, string.sub(held[i], 33)
    else
      c = math.max(c, tonumber(ARGV[at + 2])) + 1
      if c % 4294967296 == 0 or c >= 9007199254740992 then
        answer[i] = -2
      else
        answer[i] = c
        counters[#counters + 1] = fields[i + 3]
        counters[#counters + 1] = string.format('%.0f', c)
        granted[#granted + 1] = i
      end
    end
  end
  -- All counters before all locks: no lock exists without its count.
  if #counters > 0 then
    redis.call('HSET', KEYS[1], unpack(counters))
  end
  for _, i in ipairs(granted) do
    local at = 4 * i - 1
    redis.call('SET', KEYS[1 + i], ARGV[at] .. ARGV[at + 3], 'PX', ARGV[at + 1])
  end
end
local owners, dead = 2 + 4 * na, {}
for i = 1, nr do
  local value = held[na + i]
  if value and string.sub(value, 1, 32) == ARGV[owners + i] then
    dead[#dead + 1] = KEYS[1 + na + i]
    answer[na + i] = 1
  else
    answer[na + i] = 0
  end
end
if #dead > 0 then
  redis.call('DEL', unpack(dead))
end
for i = 1, #tail do
  answer[na + nr + i] = tail[i]
end
return answer
