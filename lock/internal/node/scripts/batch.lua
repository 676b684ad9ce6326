-- Several acquires (phase 1) and releases in one step, each of a resource of
-- its own: the same as acquire.lua and release.lua for each of them. What
-- concerns different resources may be done in any order, so all counters come
-- before all locks, and the releases last.
--
-- KEYS[1]  H: hash of this node's marker, base and counters
-- KEYS[2]  exists while anybody waits on this node; see wait.lua
-- KEYS     then L of each acquire, then L of each release, no lock twice
-- ARGV[1]  how many acquires
-- ARGV[2]  how many of the releases, the last ones, wake who waits on this node
-- ARGV[3]  ttl of each acquire, ms; 0: each has its own
-- ARGV[4]  1: each acquire has a floor
-- ARGV[5]  length of the part of L before the resource's name
-- ARGV[6]  start of W's names, the sorted sets of waiters
-- ARGV[7]  start of the names of the channels that wake
-- ARGV     then of each acquire: owner (32 hex digits) .. holder
--          then of each release: owner
--          then of each acquire: ttl, where ARGV[3] is 0
--          then of each acquire: floor, where ARGV[4] is 1
--
-- Flat: for each acquire its counter c > 0, or 0, -1, -2, -3 as acquire.lua has
-- them; for each release 1 or 0; then for each acquire with 0 or -3 four
-- values: its place in the order from 1, pttl (or maxttl), counter, holder.
--
-- After an error any of the acquires may have been granted.
local call, sub, max = redis.call, string.sub, math.max
local H, first, all = KEYS[1], 7, #KEYS - 2
local acquires, wakes, ttl = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local name = tonumber(ARGV[5]) + 1
local m = call('HMGET', H, '@incarnation', '@base', '@maxttl')
local found = call('MGET', unpack(KEYS, 2)) -- found[i + 1] belongs to KEYS[i + 2]
local admitted = m[1] == '@NONCE@'
local base, maxttl = tonumber(m[2] or '0'), tonumber(m[3] or '0')
local ttls, floors = ttl == 0 and first + all, ARGV[4] == '1' and #ARGV - acquires
local answer, tail = {}, {}
local keep = {} -- own locks that last longer than asked for
local function know(c) -- as acquire.lua does
  local epoch = math.floor(c / 4294967296)
  if epoch > tonumber(call('HGET', H, '@epoch') or '0') then
    call('HSET', H, '@epoch', string.format('%.0f', epoch))
  end
end
local function refuse(i, code, left, holder)
  local c = tonumber(call('HGET', H, 'c:' .. sub(KEYS[i + 2], name)) or '0')
  answer[i] = code
  for _, v in ipairs({i, left, max(c, base), holder}) do
    tail[#tail + 1] = v
  end
end

-- All counters before all locks: no lock exists without its count.
for i = 1, acquires do
  local held = found[i + 1]
  if not admitted then
    answer[i] = -1
  elseif (ttls and tonumber(ARGV[ttls + i]) or ttl) > maxttl then
    refuse(i, -3, maxttl, '')
  elseif held and sub(held, 1, 32) ~= sub(ARGV[first + i], 1, 32) then
    refuse(i, 0, call('PTTL', KEYS[i + 2]), sub(held, 33))
  else
    local field = 'c:' .. sub(KEYS[i + 2], name)
    local c = call('HINCRBY', H, field, '1') -- a number would be printed with 17 digits first
    local least = floors and max(base, tonumber(ARGV[floors + i])) or base
    if c <= least then
      c = call('HINCRBY', H, field, least + 1 - c)
    end
    if c % 4294967296 == 0 or c >= 9007199254740992 then
      call('HINCRBY', H, field, '-1')
      c = -2
    elseif c - c % 4294967296 > base then
      know(c)
    end
    if held and call('PTTL', KEYS[i + 2]) > (ttls and tonumber(ARGV[ttls + i]) or ttl) then
      keep[i] = true
    end
    answer[i] = c
  end
end
for i = 1, acquires do
  if answer[i] > 0 and not keep[i] then
    -- With GET the answer is the old value, mostly nothing; without, a table.
    call('SET', KEYS[i + 2], ARGV[first + i], 'PX', ttls and ARGV[ttls + i] or ARGV[3], 'GET')
  end
end

local dead, nd = {}, 0
for i = acquires + 1, all do
  local held = found[i + 1]
  if held and sub(held, 1, 32) == ARGV[first + i] then
    nd = nd + 1
    dead[nd], answer[i] = KEYS[i + 2], 1
  else
    answer[i] = 0
  end
end
if nd > 0 then
  call('DEL', unpack(dead))
end
for i = found[1] and all - wakes + 1 or all + 1, all do
  if answer[i] == 1 then
    local resource = sub(KEYS[i + 2], name)
    local w = ARGV[6] .. resource
    for _, head in ipairs(call('ZRANGE', w, 0, 15)) do
      if call('PUBLISH', ARGV[7] .. sub(head, 1, 32), resource) > 0 then
        break
      end
      call('ZREM', w, head) -- it does not listen any more
    end
  end
end
for i = 1, #tail do
  answer[all + i] = tail[i]
end
return answer
