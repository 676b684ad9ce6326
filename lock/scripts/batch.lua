-- Several acquires (phase 1) and releases in one step: the same as acquire.lua
-- and release.lua for each of them, one after the other, in their order. What
-- one does to a lock or a counter the next one sees.
--
-- KEYS     H, then L of each op; a lock may come more than once
-- ARGV[1]  length of the part of L before the resource's name
-- ARGV[2]  start of W's names, the sorted sets of waiters
-- ARGV[3]  start of the names of the channels that wake
-- ARGV     then for each op two or three values:
--            value, ttl           acquire; value = owner (32 hex digits) .. holder, ttl in ms
--            value, -ttl, floor   acquire above a floor
--            owner, 0             release
--            owner, 0.5           release, and wake the first who waits on this node
--
-- Flat: for each acquire its counter c > 0, or 0, -1, -2, -3 as acquire.lua has
-- them; for each release 1 or 0; then for each acquire with 0 or -3 four
-- values: its place in the order from 1, pttl (or maxttl), counter, holder.
--
-- After an error any of the acquires may have been granted.
local sub, max = string.sub, math.max
local n, name = #KEYS - 1, tonumber(ARGV[1]) + 1
local values, ttls, floors = {}, {}, {}
local fields, nf = {'@incarnation', '@base', '@maxttl'}, 3
local at = 4
for i = 1, n do
  values[i] = ARGV[at]
  local ttl = tonumber(ARGV[at + 1])
  at = at + 2
  if ttl < 0 then
    ttl, floors[i] = -ttl, tonumber(ARGV[at])
    at = at + 1
  end
  ttls[i] = ttl
  if ttl >= 1 then
    nf = nf + 1
    fields[nf] = 'c:' .. sub(KEYS[i + 1], name)
  end
end
local m = redis.call('HMGET', KEYS[1], unpack(fields))
local admitted = m[1] == '@NONCE@'
local base, maxttl = tonumber(m[2] or '0'), tonumber(m[3] or '0')
local found = redis.call('MGET', unpack(KEYS, 2))
-- What has become of locks and counters so far, by L: px is the time to live
-- that a lock gets in the end, 0 where it goes.
local lock, count, px, counted = {}, {}, {}, {}
for i = 1, n do
  lock[KEYS[i + 1]] = found[i]
end
local answer, tail, nt, f = {}, {}, 0, 3
local waits, nw = {}, 0
for i = 1, n do
  local key, value, ttl = KEYS[i + 1], values[i], ttls[i]
  local held = lock[key]
  if ttl < 1 then
    if held and sub(held, 1, 32) == value then
      answer[i], lock[key], px[key] = 1, false, 0
      if ttl > 0 then
        nw = nw + 1
        waits[nw] = ARGV[2] .. sub(key, name)
      end
    else
      answer[i] = 0
    end
  else
    f = f + 1
    if not admitted then
      answer[i] = -1
    else
      local c = count[key] or max(tonumber(m[f] or '0'), base)
      if ttl > maxttl then
        answer[i] = -3
        tail[nt + 1], tail[nt + 2], tail[nt + 3], tail[nt + 4] = i, maxttl, c, ''
        nt = nt + 4
      elseif held and sub(held, 1, 32) ~= sub(value, 1, 32) then
        answer[i] = 0
        tail[nt + 1], tail[nt + 2], tail[nt + 3], tail[nt + 4] = i, px[key] or redis.call('PTTL', key), c, sub(held, 33)
        nt = nt + 4
      else
        c = max(c, floors[i] or 0) + 1
        if c % 4294967296 == 0 or c >= 9007199254740992 then
          answer[i] = -2
        else
          answer[i], count[key], counted[key] = c, c, fields[f]
          lock[key], px[key] = value, ttl
        end
      end
    end
  end
end
-- All counters before all locks: no lock exists without its count.
local counters, nc = {}, 0
for key, field in pairs(counted) do
  counters[nc + 1], counters[nc + 2] = field, string.format('%.0f', count[key])
  nc = nc + 2
end
if nc > 0 then
  redis.call('HSET', KEYS[1], unpack(counters))
end
local dead, nd = {}, 0
for key, ttl in pairs(px) do
  if ttl > 0 then
    redis.call('SET', key, lock[key], 'PX', ttl)
  else
    nd = nd + 1
    dead[nd] = key
  end
end
if nd > 0 then
  redis.call('DEL', unpack(dead))
end
if nw > 0 and redis.call('EXISTS', unpack(waits)) > 0 then
  for _, w in ipairs(waits) do
    for _, head in ipairs(redis.call('ZRANGE', w, 0, 15)) do
      if redis.call('PUBLISH', ARGV[3] .. sub(head, 1, 32), sub(w, #ARGV[2] + 1)) > 0 then
        break
      end
      redis.call('ZREM', w, head) -- it does not listen any more
    end
  end
end
for i = 1, nt do
  answer[n + i] = tail[i]
end
return answer
