-- Leases: one holder of each role, and an epoch that fences what an earlier holder still writes.

-- hold_lease(leader:<role>, epoch:<role>; holder, ttl_ms) -> epoch, or 0 while another holds the role
local function hold_lease(keys, args)
  local current = redis.call('GET', keys[1])
  if current and current ~= args[1] then return 0 end
  if not current then redis.call('INCR', keys[2]) end
  redis.call('SET', keys[1], args[1], 'PX', args[2])
  return tonumber(redis.call('GET', keys[2]))
end

-- release_lease(leader:<role>; holder)
local function release_lease(keys, args)
  if redis.call('GET', keys[1]) == args[1] then redis.call('DEL', keys[1]) end
  return 1
end

-- renew_presence(replica:<id>; ttl_ms): the replica is alive for so long
local function renew_presence(keys, args)
  redis.call('SET', keys[1], 1, 'PX', args[1])
  return 1
end

register_allowed_when_full('hold_lease_v2', hold_lease)
register_allowed_when_full('release_lease_v1', release_lease)
register_allowed_when_full('renew_presence_v1', renew_presence)
