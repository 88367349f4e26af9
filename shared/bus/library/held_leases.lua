-- Leases of callers (shared/messages/leases.py). The leases of roles are in leases.lua.
--
-- A lease is granted by the leader, and renewed and ended by its caller. Its fields are in the hash of its action. The
-- node of all leases has no manager: these functions write its outcomes and inventories. A lease has ended at
-- `expires_ms`, also before `expire_leases` finds it.

local LEASES_NODE, LEASES_INCARNATION = ':leases', 'store'  -- as in shared/messages/leases.py

-- grant_leases(epoch:<role>, answered, leases:fences, leases:due, action...; epoch, {mark, ttl_ms, limits}...)
--   -> {fence, expires_ms} each; {0, 0}: there is no such action
--   A repeated grant changes nothing.
local function grant_leases(keys, args)
  if fenced(keys[1], args[1]) then return redis.error_reply(FENCED) end
  local replies, granted, now = {}, {}, now_ms()
  for i = 2, #args, 3 do
    local key = keys[5 + #replies]
    local fence, expires = 0, 0
    if redis.call('EXISTS', key) == 1 then
      local known = redis.call('HMGET', key, 'grant', 'fence', 'expires_ms')
      if known[1] == args[i] and known[2] then
        fence, expires = tonumber(known[2]), tonumber(known[3])
      else
        fence, expires = redis.call('INCR', keys[3]), now + args[i + 1]
        redis.call('HSET', key, 'grant', args[i], 'fence', fence, 'ttl_ms', args[i + 1], 'granted_ms', now,
          'expires_ms', expires)
        redis.call('ZADD', keys[4], expires, id_of(key))
      end
      granted[#granted + 1] = { id_of(key), fence, expires, tonumber(args[i + 1]), args[i + 2] }
    end
    replies[#replies + 1] = { fence, expires }
  end
  if #granted > 0 then
    redis.call('XADD', keys[2], 'MINID', '~', now - ANSWERED_KEPT_S * 1000, '*',
      'm', cmsgpack.pack({ kind = 'leases-granted.v1', leases = granted }))
  end
  return replies
end

-- acquire_leases(epoch:<role>, actions, leases:fences, leases:due, action..., quotas:holds, quotas:levels;
--                epoch, max_entries, {digest, payload, mark or '', ttl_ms}..., packed changes)
--   -> {entry, fence, expires_ms} each, the last two 0 without a mark; or 0: the journal has no room, nothing is written
--   acquire_leases_again is the same for a call whose reply may have been lost: it must find what was written, also
--   when memory is full.
--   Journal leases that the leader has decided about before, and grant those with a mark. A repeated call changes nothing.
--   Field `decided` names the term whose leader knows the entry. It does not read it.
local function acquire_leases(keys, args)
  if fenced(keys[1], args[1]) then return redis.error_reply(FENCED) end
  local known, new = {}, 0
  for i = 5, #keys - 2 do
    known[i] = redis.call('HMGET', keys[i], 'entry', 'fence', 'expires_ms')
    if not known[i][1] then new = new + 1 end
  end
  if new > 0 and redis.call('XLEN', keys[2]) + new > tonumber(args[2]) then return 0 end
  change_holds(keys[#keys - 1], keys[#keys], args[#args])
  local granted = 0
  for i = 5, #keys - 2 do
    if args[4 * (i - 5) + 5] ~= '' and not known[i][2] then granted = granted + 1 end
  end
  local fence = granted > 0 and redis.call('INCRBY', keys[3], granted) - granted
  local replies, due, now = {}, {}, now_ms()
  for i = 5, #keys - 2 do
    local key, entry, at = keys[i], known[i][1], 4 * (i - 5) + 3
    local fields = {}
    if not entry then
      entry = redis.call('XADD', keys[2], '*', 'm', args[at + 1], 'index', -1, 'action', key, 'batch', '',
        'decided', args[1])
      fields = { 'digest', args[at], 'entry', entry, 'batch', '' }
    end
    local reply = { entry, tonumber(known[i][2] or 0), tonumber(known[i][3] or 0) }
    if args[at + 2] ~= '' and not known[i][2] then
      fence = fence + 1
      reply[2], reply[3] = fence, now + args[at + 3]
      for _, value in ipairs({ 'grant', args[at + 2], 'fence', fence, 'ttl_ms', args[at + 3], 'granted_ms', now,
        'expires_ms', reply[3] }) do fields[#fields + 1] = value end
      due[#due + 1], due[#due + 2] = reply[3], id_of(key)
    end
    if #fields > 0 then redis.call('HSET', key, unpack(fields)) end
    replies[#replies + 1] = reply
  end
  if #due > 0 then redis.call('ZADD', keys[4], unpack(due)) end
  return replies
end

-- Write the fields of a lease's end. `used`: the amounts with which it ends, JSON, quota -> amount; or ''
local function write_end(key, used, ...)
  if used == '' then redis.call('HSET', key, ...) else redis.call('HSET', key, 'used', used, ...) end
end

-- End a lease and report the end of its attempt. `used`: see `write_end`. `unbegun`: nothing was used
local function end_lease(key, outcomes, due, kept, how, status, used, now, unbegun)
  local known = redis.call('HMGET', key, 'grant', 'granted_ms')
  redis.call('ZREM', due, id_of(key))
  if not known[1] then return end  -- its action has been answered
  write_end(key, used, 'ended', how)
  local result = { status = status }
  if used ~= '' then result.quotas_used = cjson.decode(used) end
  if unbegun then result.environment_exists = false end
  publish_event(outcomes, kept, {
    kind = 'finished.v2', action = id_of(key), node = LEASES_NODE, incarnation = LEASES_INCARNATION, epoch = 0,
    attempt = tonumber(string.match(known[1], '^%d+')), stage = 0, result = result,
    execution_s = (now - known[2]) / 1000, units = { leases = 1 },
  })
end

-- Return 1 if a caller with this fence holds the lease, else a code: 0 released with it before, -1 unknown, -2 not
-- granted, -3 another fence, -4 over, -5 released with it before, with other amounts than `used`. '' names no amounts
local function holds(key, fence, now, used)
  local a = redis.call('HMGET', key, 'fence', 'ended', 'expires_ms', 'grant')
  if not a[1] then return redis.call('EXISTS', key) == 1 and -2 or -1 end
  if a[1] ~= fence then return -3 end
  if a[2] == 'released' then return (used == '' or redis.call('HGET', key, 'used') == used) and 0 or -5 end
  if a[2] or not a[4] or tonumber(a[3]) <= now then return -4 end
  return 1
end

-- end_leases(outcomes, leases:due, action...; kept, {fence, used}...) -> a code of `holds` each; 1: it ends now
local function end_leases(keys, args)
  local codes, now = {}, now_ms()
  for i = 2, #args, 2 do
    local key = keys[3 + #codes]
    local code = holds(key, args[i], now, args[i + 1])
    if code == 1 then end_lease(key, keys[1], keys[2], args[1], 'released', 'ok', args[i + 1], now) end
    codes[#codes + 1] = code
  end
  return codes
end

-- release_leases(epoch:<role>, actions, leases:due, action...; epoch, {fence, used, entry, answer, kept_s}...)
--   -> a code of `holds` each; 1: it ends now
--   The leader has decided that these leases end, and answers their actions with it: no outcome is published. It has
--   decided before they expire, and what they have used is settled: a lease that expires until this write is released.
local function release_leases(keys, args)
  if fenced(keys[1], args[1]) then return redis.error_reply(FENCED) end
  local codes, ended = {}, {}
  for i = 2, #args, 5 do
    local key, used = keys[4 + #codes], args[i + 1]
    local code = holds(key, args[i], 0, used)
    if redis.call('XDEL', keys[2], args[i + 2]) == 1 then
      ended[#ended + 1] = id_of(key)
      if code == 1 then
        write_end(key, used, 'ended', 'released', 'answer', args[i + 3])
      else
        redis.call('HSETNX', key, 'ended', 'expired')
        redis.call('HSET', key, 'answer', args[i + 3])
      end
      redis.call('HDEL', key, 'grant')
      redis.call('EXPIRE', key, args[i + 4])
    end
    codes[#codes + 1] = code
  end
  if #ended > 0 then redis.call('ZREM', keys[3], unpack(ended)) end
  return codes
end

-- renew_leases(leases:due, action...; fence...) -> {code of `holds`, expires_ms} each
local function renew_leases(keys, args)
  local replies, now = {}, now_ms()
  for i = 1, #args do
    local key, expires = keys[i + 1], 0
    local code = holds(key, args[i], now, '')
    if code == 1 then
      expires = now + redis.call('HGET', key, 'ttl_ms')
      redis.call('HSET', key, 'expires_ms', expires)
      redis.call('ZADD', keys[1], expires, id_of(key))
    end
    replies[i] = { code, expires }
  end
  return replies
end

-- revoke_leases(epoch:<role>, outcomes, leases:due, action...; epoch, kept, {attempt, begun: 1 or 0}...)
--   The mesh no longer wants these attempts. One that has ended stays as it is.
local function revoke_leases(keys, args)
  if fenced(keys[1], args[1]) then return redis.error_reply(FENCED) end
  local now = now_ms()
  for i = 3, #args, 2 do
    local key = keys[4 + (i - 3) / 2]
    local a = redis.call('HMGET', key, 'grant', 'ended')
    if a[1] and not a[2] and string.match(a[1], '^%d+') == args[i] then
      end_lease(key, keys[2], keys[3], args[2], 'revoked', 'cancelled', '', now, args[i + 1] == '0')
    end
  end
  return 1
end

-- expire_leases(epoch:<role>, outcomes, leases:due; epoch, kept, most) -> {leases ended now, expires_ms of the next or 0}
-- Derived: the actions of the leases that are due.
local function expire_leases(keys, args)
  if fenced(keys[1], args[1]) then return redis.error_reply(FENCED) end
  local now = now_ms()
  local due = redis.call('ZRANGEBYSCORE', keys[3], '-inf', now, 'LIMIT', 0, args[3])
  for _, lease in ipairs(due) do
    end_lease('action:' .. lease, keys[2], keys[3], args[2], 'expired', 'timeout', '', now)
  end
  local first = redis.call('ZRANGE', keys[3], 0, 0, 'WITHSCORES')
  return { #due, first[2] and tonumber(first[2]) or 0 }
end

-- list_leases(epoch:<role>, outcomes, leases:due; epoch, kept): publish the inventory of the node of leases. O(leases)
-- Derived: the actions of all leases that are held.
local function list_leases(keys, args)
  if fenced(keys[1], args[1]) then return redis.error_reply(FENCED) end
  local held, now = {}, now_ms()
  for _, lease in ipairs(redis.call('ZRANGE', keys[3], 0, -1)) do
    local key = 'action:' .. lease
    local a = redis.call('HMGET', key, 'grant', 'granted_ms')
    if a[1] then
      local attempt = tonumber(string.match(a[1], '^%d+'))
      held[#held + 1] = { lease, tonumber(args[1]), attempt, 0, { leases = 1 }, (now - a[2]) / 1000 }
    end
  end
  publish_event(keys[2], args[2], {
    kind = 'inventory-taken.v1', node = LEASES_NODE, incarnation = LEASES_INCARNATION, epoch = tonumber(args[1]),
    held = held,
  })
  return 1
end

register_allowed_when_full('grant_leases_with_quotas_v1', with_quotas(grant_leases))
register('acquire_leases_v1', acquire_leases)
register_allowed_when_full('acquire_leases_again_v1', acquire_leases)
register_allowed_when_full('end_leases_v1', end_leases)
register_allowed_when_full('release_leases_with_quotas_v2', with_quotas(release_leases))
register_allowed_when_full('renew_leases_v1', renew_leases)
register_allowed_when_full('revoke_leases_v2', revoke_leases)
register_allowed_when_full('expire_leases_v1', expire_leases)
register_allowed_when_full('list_leases_v1', list_leases)
